"""Rows that are on their way: moved, pending, or below such a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, make_transient

from sa_doclock.core.documents.owners import UNKNOWN
from tests.integration.documents.models import Journal, Line, Order, Split, Tax
from tests.unit.document_rows import headers_of, in_memory, recorded


@pytest.fixture
def session() -> Iterator[Session]:
    with in_memory() as session:
        yield session


@pytest.fixture
def sent(session: Session) -> list[str]:
    return recorded(session)


def test_a_row_that_moves_belongs_to_both(session: Session) -> None:
    line = session.get_one(Line, 3)
    line.order_id = 1
    assert headers_of(session, Order, line) == {(1,), (2,)}
    session.flush()
    assert headers_of(session, Order, line) == {(1,)}


def test_a_row_that_moves_by_its_relationship(session: Session, sent: list[str]) -> None:
    line, order = session.get_one(Line, 3), session.get_one(Order, 1)
    line.order = order
    sent.clear()
    assert headers_of(session, Order, line) == {(1,), (2,)}
    assert sent == []


def test_a_row_that_moves_at_the_second_level(session: Session) -> None:
    tax, line = session.get_one(Tax, 4), session.get_one(Line, 1)
    tax.line = line
    assert headers_of(session, Order, tax, ask=True) == {(1,), (2,)}
    tax = session.get_one(Tax, 3)
    tax.line_id = 3
    assert headers_of(session, Order, tax, ask=True) == {(1,), (2,)}


def test_a_row_below_one_that_moves(session: Session) -> None:
    line, tax = session.get_one(Line, 3), session.get_one(Tax, 4)
    line.order_id = 1
    assert headers_of(session, Order, tax) == {(1,), (2,)}


def test_where_a_row_moves_by_an_sql_expression_is_unknown(session: Session) -> None:
    line: Any = session.get_one(Line, 3)
    line.order_id = select(Order.id).limit(1).scalar_subquery()
    assert headers_of(session, Order, line) == {UNKNOWN, (2,)}


def test_a_row_of_a_composite_key_that_moves_by_half_of_it(session: Session) -> None:
    split = session.get_one(Split, 1)
    split.number = 2
    assert headers_of(session, Journal, split, ask=True) == {(2024, 1), (2024, 2)}


def test_a_pending_row(session: Session, sent: list[str]) -> None:
    order = session.get_one(Order, 1)
    sent.clear()
    by_key, by_object = Line(id=8, order_id=2, value=1), Line(id=9, value=1, order=order)
    session.add_all([by_key, by_object])
    assert headers_of(session, Order, by_key) == {(2,)}
    assert headers_of(session, Order, by_object) == {(1,)}
    assert sent == []


def test_a_pending_row_below_a_pending_row(session: Session, sent: list[str]) -> None:
    order = Order(id=9, total=1, lines=[Line(id=9, value=1, taxes=[Tax(id=9, value=1)])])
    session.add(order)
    (line,) = order.lines
    assert headers_of(session, Order, line.taxes[0]) == {(9,)}
    assert sent == []


def test_a_pending_row_of_a_row_that_is_not_there(session: Session) -> None:
    session.add(tax := Tax(id=9, line_id=2, value=1))
    assert headers_of(session, Order, tax) == {UNKNOWN}
    assert headers_of(session, Order, tax, ask=True) == {(1,)}


def test_a_pending_row_of_nothing(session: Session) -> None:
    session.add(line := Line(id=9, value=1))
    assert headers_of(session, Order, line, ask=True) == set()


def test_a_new_object_that_was_a_row_has_the_owner_that_it_was_loaded_with(
    session: Session,
) -> None:
    line = session.get_one(Line, 3)
    assert line.order.id == 2
    make_transient(line)
    line.id = 99
    del line.order_id
    session.add(line)
    assert headers_of(session, Order, line) == {(2,)}
