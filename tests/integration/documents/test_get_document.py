"""get_document(): the header, then one statement for each kind of part, and nothing after."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from sa_doclock import LockingSession, LockOptions
from tests.integration.documents.hierarchies import Contract, Lease, Machine, Penalty
from tests.integration.documents.loading import Basket, Bill, Folder, Puzzle
from tests.integration.documents.models import Category, Job, Journal, Order, Plan
from tests.integration.documents.relationships import Album, Playlist
from tests.integration.documents.whole import whole

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
    # A subclass with a table of its own is one kind more, of the header too.
    "joined inheritance": Case(
        Contract, 1, 5, (30, [(10, [4, 6]), 20], [30])
    ),
    "by the subclass": Case(Lease, 1, 4, (30, [(10, [4, 6]), 20], [30])),
    "the root alone": Case(Contract, 2, 3, (5, [(5, [5])])),
    "one subclass": Case(Machine, 1, 2, (30, [(30, [30])])),
    "another, whose parts have the same name": Case(Machine, 2, 2, (5, [(5, [5])])),
    "a class without parts": Case(Machine, 3, 0, 0),
    # Tasks, their subtasks at depth 1, 2, 3, none at 4, and notes.
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
