"""Rows of documents in memory, and the headers that the library finds for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event, inspect, select, update
from sqlalchemy.orm import Session, make_transient

from sa_doclock.core.documents.mapping import mapper_of
from sa_doclock.core.documents.owners import UNKNOWN, HeaderResolver
from tests.integration.documents.hierarchies import (
    Album,
    Badge,
    Code,
    Contract,
    Cover,
    Label,
    Lease,
    Room,
    Sticker,
    Tag,
    Tier,
)
from tests.integration.documents.models import (
    Base,
    Category,
    Entry,
    Good,
    Job,
    Journal,
    Line,
    Note,
    Order,
    Split,
    Task,
    Tax,
)
from tests.integration.documents.rows import refill
from tests.support.rows import rows

Found = set[tuple[Any, ...]]


@contextmanager
def in_memory() -> Iterator[Session]:
    """Open a plain session on the rows of tests/integration/documents/rows.py."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        refill(connection)
    with Session(engine, autoflush=False) as session:
        yield session
    engine.dispose()


def recorded(session: Session) -> list[str]:
    """Record the statements that the session sends from now on."""
    noted: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        noted.append(statement)

    event.listen(session.get_bind(), "before_cursor_execute", note)
    return noted


def headers_of(session: Session, root: type[Any], thing: object, *, ask: bool = False) -> Found:
    """Return the headers that HeaderResolver finds, with or without asking the database."""
    return set(HeaderResolver(session, mapper_of(root), ask=ask).headers(inspect(thing)))


# --------------------------------------------------------------------------------------------------
# From a row up to its header: without a SELECT if the foreign key identifies it.


@pytest.fixture
def session() -> Iterator[Session]:
    with in_memory() as session:
        yield session


@pytest.fixture
def sent(session: Session) -> list[str]:
    return recorded(session)


#: Rows whose own foreign key is the header's key.
ONE_LEVEL: list[tuple[type[Any], type[Any], Any, Found]] = [
    (Order, Line, 3, {(2,)}),
    (Journal, Entry, (1, 2024, 1), {(2024, 1)}),  # an entry's key begins with the journal's number
    (Journal, Entry, (2024, 1, 1), {(1, 2024)}),
    (Contract, Room, 1, {(1,)}),
    (Album, Cover, 1, {(1,)}),
]


@rows("root, entity, ident, headers", ONE_LEVEL)
def test_the_foreign_key_says_it(
    session: Session,
    sent: list[str],
    root: type[Any],
    entity: type[Any],
    ident: Any,
    headers: Found,
) -> None:
    thing = session.get_one(entity, ident)
    sent.clear()
    assert headers_of(session, root, thing) == headers
    assert headers_of(session, root, thing, ask=True) == headers
    assert sent == []


#: Rows further down, with the path from the row up to the header.
FURTHER: list[tuple[type[Any], list[tuple[type[Any], Any]], Found]] = [
    (Order, [(Tax, 1), (Line, 1)], {(1,)}),
    (Journal, [(Split, 5), (Entry, (2024, 1, 1))], {(1, 2024)}),
    (Contract, [(Tier, 3), (Contract, 2)], {(2,)}),
    (Job, [(Note, 2), (Task, 4), (Task, 3), (Task, 2), (Task, 1)], {(1,)}),
]


@pytest.mark.parametrize(("root", "chain", "headers"), FURTHER)
def test_with_its_owners_in_the_session_nothing_is_sent(
    session: Session,
    sent: list[str],
    root: type[Any],
    chain: list[tuple[type[Any], Any]],
    headers: Found,
) -> None:
    things = [session.get_one(*one) for one in chain]
    if root is Contract:
        things += session.scalars(select(mapper_of(Tier).get_property("id").class_attribute)).all()
        clauses: Any = things[1].clauses
        things += clauses
    sent.clear()
    assert headers_of(session, root, things[0]) == headers
    assert sent == []


@pytest.mark.parametrize(("root", "chain", "headers"), FURTHER)
def test_without_them_it_is_unknown_or_asked(
    session: Session,
    sent: list[str],
    root: type[Any],
    chain: list[tuple[type[Any], Any]],
    headers: Found,
) -> None:
    thing = session.get_one(*chain[0])
    sent.clear()
    assert headers_of(session, root, thing) == {UNKNOWN}
    assert sent == []
    assert headers_of(session, root, thing, ask=True) == headers
    assert sent


#: Rows without a foreign key that leads to their header.
NO_KEY: list[tuple[type[Any], type[Any], Any, Found]] = [
    (Album, Tag, 1, {(1,), (2,)}),
    (Album, Tag, 3, {(1,)}),
    (Album, Code, 3, {(2,)}),
    (Album, Label, 1, {(1,), (2,)}),
    (Album, Sticker, 2, {(1,), (2,)}),
]


@pytest.mark.parametrize(("root", "entity", "ident", "headers"), NO_KEY)
def test_without_a_foreign_key_it_is_asked(
    session: Session,
    sent: list[str],
    root: type[Any],
    entity: type[Any],
    ident: Any,
    headers: Found,
) -> None:
    thing = session.get_one(entity, ident)
    sent.clear()
    assert headers_of(session, root, thing) == {UNKNOWN}
    assert sent == []
    assert headers_of(session, root, thing, ask=True) == headers


def test_a_row_of_no_document_has_none(session: Session) -> None:
    session.add(badge := Badge(id=9, value=1))
    assert headers_of(session, Order, badge, ask=True) == set()
    assert headers_of(session, Order, session.get_one(Tag, 1), ask=True) == set()


def test_a_header_is_its_own(session: Session) -> None:
    assert headers_of(session, Order, session.get_one(Order, 2)) == {(2,)}
    assert headers_of(session, Contract, session.get_one(Lease, 1)) == {(1,)}
    session.add(order := Order(id=9, total=1))
    assert headers_of(session, Order, order) == {(9,)}


def test_an_expired_row_is_unknown_or_read(session: Session, sent: list[str]) -> None:
    line = session.get_one(Line, 3)
    session.expire(line)
    sent.clear()
    assert headers_of(session, Order, line) == {UNKNOWN}
    assert sent == []
    assert headers_of(session, Order, line, ask=True) == {(2,)}


def test_an_expired_row_that_is_gone_does_not_raise(session: Session) -> None:
    line = session.get_one(Line, 3)
    session.execute(Base.metadata.tables["dc_line"].delete().where(Line.id == 3))
    session.expire(line)
    assert headers_of(session, Order, line, ask=True) <= {UNKNOWN}


def test_a_foreign_key_set_while_it_was_expired(session: Session) -> None:
    line = session.get_one(Line, 3)
    session.expire(line)
    line.order_id = 1
    assert headers_of(session, Order, line, ask=True) == {(1,), (2,)}


def test_a_tree_belongs_to_its_topmost_header(session: Session, sent: list[str]) -> None:
    categories = [session.get_one(Category, number) for number in (1, 2, 3, 4)]
    good = session.get_one(Good, 2)
    sent.clear()
    for one in (*categories, good):
        assert headers_of(session, Category, one) == {(1,)}
    assert sent == []


def test_a_tree_that_is_not_in_the_session_is_asked(session: Session) -> None:
    leaf = session.get_one(Category, 4)
    assert headers_of(session, Category, leaf) == {UNKNOWN}
    assert headers_of(session, Category, leaf, ask=True) == {(1,)}


def test_a_header_that_becomes_a_part(session: Session) -> None:
    category = session.get_one(Category, 5)
    category.parent_id = 2
    assert headers_of(session, Category, category, ask=True) >= {(1,)}


def test_a_part_that_becomes_a_header(session: Session) -> None:
    category = session.get_one(Category, 3)
    category.parent_id = None
    assert headers_of(session, Category, category, ask=True) >= {(1,)}


def test_a_circle_in_the_data_ends(session: Session) -> None:
    session.execute(update(Category).where(Category.id == 1).values(parent_id=4))
    session.execute(update(Task).where(Task.id == 1).values(parent_id=4))
    for number in (1, 4):
        category, task = session.get_one(Category, number), session.get_one(Task, number)
        assert isinstance(headers_of(session, Category, category, ask=True), set)
        assert headers_of(session, Job, task, ask=True) == {(1,)}
        assert isinstance(headers_of(session, Category, category), set)
    everything = list(session.scalars(select(Category)))
    assert all(isinstance(headers_of(session, Category, one), set) for one in everything)


def test_a_row_that_is_its_own_owner(session: Session) -> None:
    session.execute(update(Category).where(Category.id == 5).values(parent_id=5))
    category = session.get_one(Category, 5)
    assert isinstance(headers_of(session, Category, category, ask=True), set)
    assert isinstance(headers_of(session, Category, category), set)


# --------------------------------------------------------------------------------------------------
# Rows in transit: moved, pending, or below such a row.


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
