"""get_documents(): as many statements as for one document, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.documents.hierarchies import Contract, Machine
from tests.integration.documents.models import Category, Job, Journal, Line, Order, Tax
from tests.integration.documents.relationships import Album
from tests.integration.documents.whole import whole
from tests.support.actors import Actor

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate
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
    headers = 2 if session.get_bind().dialect.name == "sqlite" else 1  # it takes 900 keys at once
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


@pytest.mark.not_databases("sqlite")  # locks the file, not rows
def test_what_others_hold_is_skipped_with_its_parts(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(lambda s: s.get_document(Order, 1, ForUpdate))
    found = bob.does(
        lambda s: whole(s.get_documents(Order, [1, 2], ForUpdate | LockOptions.SkipLocked))
    )
    assert found == [(5, [(5, [5])])]
