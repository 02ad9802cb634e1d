"""get_document() sends a statement for the header, one for each kind of part, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.integration.documents.hierarchies import (
    Album,
    Contract,
    Lease,
    Machine,
    Penalty,
    Playlist,
)
from tests.integration.documents.loading import (
    Basket,
    Bill,
    Client,
    Folder,
    Invoice,
    Puzzle,
    Sheet,
    Stamp,
)
from tests.integration.documents.models import Category, Job, Journal, Line, Order, Plan, Tax
from tests.integration.documents.rows import whole
from tests.support.actors import Actor

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
LOCKS = [LockOptions.None_, LockOptions.NoLock, SharedRead, ForUpdate, LockOptions.SnapshotRead]


class Case(NamedTuple):
    entity: type[Any]
    ident: Any
    statements: int  # for the parts, beside those of the header
    expected: Any


CASES = {
    "lines and taxes": Case(Order, 1, 2, (30, [(10, [4, 6]), (20, [20])])),
    "composite keys": Case(Journal, (2024, 1), 2, (30, [(10, [4, 6]), (20, [20])])),
    # A subclass with its own table counts as another kind, for the header too.
    "joined inheritance": Case(
        Contract, 1, 5, (30, [(10, [4, 6]), 20], [30])
    ),
    "by the subclass": Case(Lease, 1, 4, (30, [(10, [4, 6]), 20], [30])),
    "the root alone": Case(Contract, 2, 3, (5, [(5, [5])])),
    "one subclass": Case(Machine, 1, 2, (30, [(30, [30])])),
    "another, whose parts have the same name": Case(Machine, 2, 2, (5, [(5, [5])])),
    "a class without parts": Case(Machine, 3, 0, 0),
    # Tasks, their subtasks at depths 1, 2 and 3 (none at 4), and notes.
    "parts of parts": Case(
        Job, 1, 6,
        (30, [
            (10, [(11, [(12, [(13, [], [13])], [])], [])], [10]),
            (20, [(21, [], [21])], []),
        ]),
    ),
    "a tree": Case(
        Category, 1, 5,
        (30, [(31, [(32, [(33, [], [33])], [])], [])], [30]),
    ),
    "every kind of relationship": Case(
        Album, 1, 8,
        (30, 30, (7, [70, 71]), [2, 3, 1], {10, 20}, {"en": 10, "de": 20}, [10, 20], [10]),
    ),
    "nothing there": Case(Album, 3, 7, (0, None, None, [], set(), {}, [], [])),
    "many-to-many below a part": Case(
        Playlist, 1, 3, (30, [(10, [2, 1]), (20, [1, 2])], [3, 2])
    ),
    "lazy='raise'": Case(Bill, 1, 2, (30, [(10, [10]), (20, [20])])),
    "lazy='raise' of a subclass": Case(Puzzle, 1, 2, (30, [(10, [10]), 20])),
    "not declared": Case(Folder, 1, 1, (30, [10, 20])),
    "not declared, and empty": Case(Folder, 2, 1, (0, [])),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_part_takes_one_statement(
    session: LockingSession, sent: list[str], name: str
) -> None:
    case = CASES[name]
    header = session.get_entity(case.entity, case.ident, ForUpdate)
    session.expunge_all()
    session.rollback()
    for_header = len(sent)
    sent.clear()
    document = session.get_document(case.entity, case.ident, ForUpdate)
    assert len(sent) - for_header == case.statements, sent
    sent.clear()
    assert whole(document) == case.expected
    assert sent == []
    assert header is not None


@pytest.mark.parametrize("lock", LOCKS)
def test_with_every_lock(session: LockingSession, sent: list[str], lock: LockOptions) -> None:
    for case in CASES.values():
        document = session.get_document(case.entity, case.ident, lock)
        sent.clear()
        assert whole(document) == case.expected
        assert sent == []
        session.rollback()
        session.expunge_all()


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_loaded_along_with_the_header(
    session: LockingSession, sent: list[str], lock: LockOptions
) -> None:
    basket = session.get_document(Basket, 1, lock)
    assert len(sent) <= 4, sent
    sent.clear()
    assert whole(basket) == (30, [(10, [10]), (20, [20])], [30])
    assert sent == []


@pytest.mark.parametrize("lock", LOCKS)
def test_no_row_is_none_and_nothing_more_is_sent(
    session: LockingSession, sent: list[str], lock: LockOptions
) -> None:
    assert session.get_entity(Order, 99, lock) is None
    session.rollback()
    for_header = len(sent)
    assert session.get_document(Order, 99, lock) is None
    assert len(sent) == 2 * for_header


def test_the_parts_are_no_subject_of_the_lock(session: LockingSession) -> None:
    session.get_document(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}


def test_columns_of_subclasses_are_loaded_too(session: LockingSession, sent: list[str]) -> None:
    contract = session.get_document(Contract, 1, ForUpdate)
    assert isinstance(contract, Lease)
    penalty, _ = contract.clauses
    assert isinstance(penalty, Penalty)
    sent.clear()
    assert penalty.amount == 100
    assert contract.rent == 500
    assert sent == []


def test_a_row_of_another_class_is_none(session: LockingSession) -> None:
    assert session.get_document(Lease, 2, ForUpdate) is None


def test_parts_below_parts_of_their_own_kind(session: LockingSession, sent: list[str]) -> None:
    plan = session.get_document(Plan, 1, ForUpdate)
    assert plan is not None
    (step,) = plan.steps
    (below,) = step.substeps
    (deepest,) = below.substeps
    sent.clear()
    assert [remark.value for remark in below.remarks] == [2]
    assert [remark.value for remark in deepest.remarks] == [3]
    assert deepest.substeps == []
    assert sent == []


# --------------------------------------------------------------------------------------------------
# get_documents() sends as many statements as for one document, however many it loads.

Run = Callable[..., None]


def thirty_more(order: int) -> list[sa.Executable]:
    lines = [{"id": n, "order_id": order, "value": n} for n in range(100, 130)]
    taxes = [{"id": n, "line_id": n, "value": n} for n in range(100, 130)]
    return [sa.insert(Line).values(lines), sa.insert(Tax).values(taxes)]


def test_thirty_lines_take_no_more_statements(
    session: LockingSession, elsewhere: Run, sent: list[str]
) -> None:
    few = session.get_document(Order, 1, ForUpdate)
    session.rollback()
    session.expunge_all()
    for_few = len(sent)
    elsewhere(*thirty_more(1))
    sent.clear()
    more = session.get_document(Order, 1, ForUpdate)
    assert len(sent) == for_few == 3
    sent.clear()
    assert more is not None
    assert sum(tax.value for line in more.lines for tax in line.taxes) == 30 + sum(range(100, 130))
    assert sent == []
    assert few is not more


@pytest.mark.parametrize(
    ("entity", "idents", "for_one"),
    [
        (Order, [2, 1], 3),
        (Journal, [(2024, 2), (1, 2024), (2024, 1)], 3),
        (Job, [1, 2], 7),
        (Category, [5, 1], 6),
        (Machine, [3, 1, 2], 5),
        (Contract, [2, 1], 5),
        (Album, [1, 3, 2], 9),
    ],
)
def test_three_documents_take_as_many_statements_as_one(
    session: LockingSession, sent: list[str], entity: type[Any], idents: list[Any], for_one: int
) -> None:
    found = session.get_documents(entity, idents, ForUpdate)
    assert len(sent) <= for_one + (entity is Contract)  # it spans two tables
    sent.clear()
    documents = [whole(document) for document in found]
    assert sent == []
    session.rollback()
    session.expunge_all()
    assert documents == [whole(session.get_one(entity, ident)) for ident in sorted(idents)]


def test_they_come_in_ascending_order_without_those_that_are_not(session: LockingSession) -> None:
    found = session.get_documents(Order, [99, 2, 1, 2], ForUpdate)
    assert [whole(order) for order in found] == [
        (30, [(10, [4, 6]), (20, [20])]),
        (5, [(5, [5])]),
    ]
    assert list(session.held_locks) == [(Order, (1,)), (Order, (2,))]


def test_none_at_all_send_nothing(session: LockingSession, sent: list[str]) -> None:
    assert session.get_documents(Order, [], ForUpdate) == []
    assert sent == []


def test_what_is_loaded_is_not_loaded_again(session: LockingSession, sent: list[str]) -> None:
    first = session.get_documents(Order, [1], ForUpdate)
    sent.clear()
    both = session.get_documents(Order, [1, 2], ForUpdate)
    assert len(sent) == 3
    assert both[0] is first[0]
    sent.clear()
    assert len([whole(order) for order in both]) == 2
    assert sent == []
    assert session.get_documents(Order, [2, 1], ForUpdate) == both
    assert sent == []


@pytest.mark.slow
@pytest.mark.databases("sqlite", "postgresql")
def test_more_documents_than_a_statement_takes_keys(
    session: LockingSession, elsewhere: Run, sent: list[str]
) -> None:
    numbers = range(1000, 2000)
    elsewhere(
        sa.insert(Order).values([{"id": n, "total": n} for n in numbers]),
        sa.insert(Line).values([{"id": n, "order_id": n, "value": n} for n in numbers]),
        sa.insert(Line).values(
            [{"id": n + 5000, "order_id": n, "value": 1} for n in numbers[:500]]
        ),
        sa.insert(Tax).values([{"id": n, "line_id": n, "value": n} for n in numbers]),
    )
    found = session.get_documents(Order, numbers, ForUpdate)
    headers = 2 if session.get_bind().dialect.name == "sqlite" else 1  # 900 keys at once
    assert len(sent) == headers + 4  # lines and taxes by 900 headers
    sent.clear()
    for number, order in zip(numbers, found, strict=True):
        second: list[Any] = [(1, [])] if number < 1500 else []
        assert whole(order) == (number, [(number, [number]), *second])
    assert sent == []


@pytest.mark.slow
@pytest.mark.databases("sqlite", "postgresql")
def test_more_composite_keys_than_a_statement_takes(
    session: LockingSession, elsewhere: Run, sent: list[str]
) -> None:
    numbers = range(1, 701)
    elsewhere(
        sa.insert(Journal).values([{"year": 7, "number": n, "total": n} for n in numbers]),
    )
    found = session.get_documents(Journal, [(7, n) for n in numbers], ForUpdate)
    sent.clear()
    assert [whole(journal) for journal in found] == [(n, []) for n in numbers]
    assert sent == []


@pytest.mark.not_databases("sqlite")  # it locks the file, not rows
def test_what_others_hold_is_skipped_with_its_parts(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(lambda s: s.get_document(Order, 1, ForUpdate))
    found = bob.does(
        lambda s: whole(s.get_documents(Order, [1, 2], ForUpdate | LockOptions.SkipLocked))
    )
    assert found == [(5, [(5, [5])])]


# --------------------------------------------------------------------------------------------------
# Undeclared entities: their one-to-many collections count as their parts.


def test_one_level_is_fresh_and_the_next_is_left_alone(
    session: LockingSession, elsewhere: Run
) -> None:
    folder = session.get_one(Folder, 1)
    stamps = [stamp for sheet in folder.sheets for stamp in sheet.stamps]
    session.commit()
    elsewhere(sa.update(Sheet).values(value=1), sa.update(Stamp).values(value=1))
    assert whole(session.get_entity(Folder, 1, ForUpdate)) == (30, [1, 1])
    assert [stamp.value for stamp in stamps] == [10, 20]


def test_one_level_is_loaded_and_the_next_is_not(session: LockingSession) -> None:
    folder = session.get_document(Folder, 1, ForUpdate)
    assert folder is not None
    assert ["stamps" in sa.inspect(sheet).dict for sheet in folder.sheets] == [False, False]


def test_pending_changes_of_one_level_are_refused(session: LockingSession) -> None:
    sheet, stamp = session.get_one(Sheet, 1), session.get_one(Stamp, 1)
    session.commit()
    stamp.value = 11
    session.get_entity(Folder, 1, ForUpdate)
    session.rollback()
    sheet.value = 11
    with pytest.raises(UnsavedChanges, match="Sheet in its 'sheets'"):
        session.get_entity(Folder, 1, ForUpdate)


def test_documents_in_its_collection_are_no_parts_of_it(session: LockingSession) -> None:
    invoice = session.get_one_entity(Invoice, 1, ForUpdate)
    invoice.total += 1
    client = session.get_one_entity(Client, 1, ForUpdate)
    assert invoice in session.dirty
    assert invoice.total == 31
    client.total += 1
    session.commit()
    assert session.scalar(sa.select(Invoice.total).where(Invoice.id == 1)) == 31


def test_a_held_document_keeps_what_was_loaded(session: LockingSession, sent: list[str]) -> None:
    invoice = session.get_one_entity(Invoice, 1, ForUpdate)
    client = session.get_one_entity(Client, 1, ForUpdate)
    sent.clear()
    assert invoice.total == 30
    assert sent == []
    assert client
