"""A flush of many rows: some held and some not, and the cost of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions, UnlockedWrite
from tests.integration.guard.models import (
    Box,
    Budget,
    City,
    Contract,
    Country,
    Entry,
    Fault,
    Line,
    Order,
    Post,
    Repair,
    River,
    Ticket,
    Voucher,
)
from tests.integration.guard.steps import hold, refused
from tests.integration.locking.call_counts import calls_of
from tests.support.rows import rows

pytestmark = pytest.mark.quick


NUMBERS = range(101, 106)


def by_key(session: LockingSession, order: int) -> None:
    session.add(Line(id=200, order_id=order))


def by_owner(session: LockingSession, order: int) -> None:
    with session.no_autoflush:
        session.add(Line(id=200, order=session.get_one(Order, order)))


def by_owner_against_key(session: LockingSession, order: int) -> None:
    with session.no_autoflush:
        session.add(Line(id=200, order_id=3 - order, order=session.get_one(Order, order)))


@pytest.mark.parametrize("add", [by_key, by_owner, by_owner_against_key])
def test_one_of_many_new_rows_is_of_another_document(
    session: LockingSession, add: Callable[[LockingSession, int], None]
) -> None:
    held = hold(session, Order, 1)
    session.add_all([Line(id=number, order_id=1) for number in NUMBERS])
    add(session, 2)
    with refused(session, Order, 2, "a new Line would be inserted"):
        session.flush()
    assert held


def test_new_rows_of_a_new_and_of_a_held_document(session: LockingSession) -> None:
    held, new = hold(session, Order, 1)[0], Order(id=9)
    session.add(new)
    for number in NUMBERS:
        session.add(Line(id=number, order=new if number % 2 else held))
    session.commit()
    with refused(session, Order, 9):
        session.add(Line(id=200, order_id=9))
        session.flush()


def test_one_of_many_deleted_rows_is_of_another_document(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    for line in session.scalars(sa.select(Line).where(Line.order_id.in_([1, 2]))).all():
        session.delete(line)
    with refused(session, Order, 2, "would be deleted"):
        session.flush()
    assert held


def test_a_deleted_row_that_a_listener_moves_first(session: LockingSession) -> None:
    """Its document was held when the flush began."""
    line = hold(session, Order, 1)[0].lines[0]
    session.delete(line)

    def move(*_: object) -> None:
        line.order_id = 2

    event.listen(session, "before_flush", move)
    with pytest.raises(UnlockedWrite, match="Order 2"):
        session.flush()


def new_lines(session: LockingSession, count: int) -> None:
    session.add_all([Line(id=100 + number, order_id=1) for number in range(count)])


def new_lines_of_the_owner(session: LockingSession, count: int) -> None:
    lines = session.get_one(Order, 1).lines
    lines.extend(Line(id=100 + number) for number in range(count))


def a_new_order(session: LockingSession, count: int) -> None:
    session.add(Order(id=9, lines=[Line(id=100 + number) for number in range(count)]))


def new_entries(session: LockingSession, count: int) -> None:
    """They have no voucher yet: the flush sets their foreign keys."""
    entries = session.get_one(Voucher, (2024, 1)).entries
    entries.extend(Entry(id=100 + number) for number in range(count))


def changed_lines(session: LockingSession, count: int) -> None:
    new_lines(session, count)
    session.flush()
    for line in session.get_one(Order, 1).lines:
        line.value += 1


def deleted_lines(session: LockingSession, count: int) -> None:
    new_lines(session, count)
    session.flush()
    lines = session.scalars(sa.select(Line).where(Line.id >= 100)).all()
    with session.no_autoflush:  # else each is written before the next
        for line in lines:
            session.delete(line)


@pytest.mark.databases("sqlite")
@rows(
    "prepare, most",
    [
        (new_lines, 4),
        (new_lines_of_the_owner, 4),
        (a_new_order, 4),
        (new_entries, 5),
        (changed_lines, 2),
        (deleted_lines, 1),
    ],
    lambda value: getattr(value, "__name__", value),
)
def test_a_row_that_is_held_costs_the_guard_few_calls(
    session: LockingSession, prepare: Callable[[LockingSession, int], None], most: int
) -> None:
    def calls(count: int) -> int:
        held = hold(session, Order, 1), hold(session, Voucher, (2024, 1))
        prepare(session, count)
        found = calls_of(session.flush)
        session.rollback()
        assert held
        return sum(call.lstrip().startswith("guard/") for call in found)

    calls(1), calls(2)  # sends the queries that run once per mapper and statement
    assert (calls(30) - calls(10)) / 20 <= most


@pytest.mark.parametrize("code", ["b", sa.func.lower("B")], ids=["value", "SQL"])
@pytest.mark.parametrize("expired", [False, True])
def test_rows_whose_owner_the_database_tells_and_a_listener_moves(
    session: LockingSession, code: object, expired: bool
) -> None:
    """One query at the start of the flush covers all rows; only the moved row needs another."""
    (budget,) = hold(session, Budget, 1)
    budget.posts += [Post(id=number) for number in NUMBERS]
    session.flush()
    for post in budget.posts:
        if expired:
            session.expire(post, ["code"])
        post.value += 1

    def move(_mapper: object, _connection: object, post: Post) -> None:
        if post.id == NUMBERS[2]:
            post.code = code  # type: ignore[assignment]

    event.listen(Post, "before_update", move)
    try:
        with refused(session, Budget, 2, sent_first=True):
            session.flush()
    finally:
        event.remove(Post, "before_update", move)


@pytest.mark.parametrize("held", [1, 2])
def test_one_of_many_rows_whose_owner_the_database_tells_is_of_another_document(
    session: LockingSession, held: int
) -> None:
    budget = hold(session, Budget, held)[0]
    budget.posts += [Post(id=number) for number in NUMBERS]
    session.flush()
    for post in session.scalars(sa.select(Post)).all():
        post.value += 1
    with refused(session, Budget, 3 - held):
        session.flush()


# --------------------------------------------------------------------------------------------------
# The primary key of a held header changes: the session holds the document by both keys.

Change = Callable[[LockingSession, Country], object]


@pytest.fixture
def _with_foreign_keys(engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda new, _: new.execute("PRAGMA foreign_keys = ON"))


def set_attribute(session: LockingSession, country: Country) -> None:
    country.code = "cc"
    session.flush()


def set_attribute_of_loaded(session: LockingSession, country: Country) -> None:
    assert country.cities
    assert country.rivers
    country.code = "cc"
    session.flush()


def update_statement(session: LockingSession, country: Country) -> None:
    session.execute(sa.update(Country).where(Country.code == country.code).values(code="cc"))
    session.expunge_all()


def update_table(session: LockingSession, country: Country) -> None:
    table: Any = Country.__table__
    session.execute(sa.update(table).where(table.c.code == country.code).values(code="cc"))
    session.expunge_all()


CHANGES = {
    one.__name__: one
    for one in (set_attribute, set_attribute_of_loaded, update_statement, update_table)
}
each_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@pytest.mark.usefixtures("_with_foreign_keys")
@each_change
def test_the_document_is_written_after_its_key_was_changed(
    session: LockingSession, stored: Callable[[Any, Any], Any], change: Change
) -> None:
    (country,) = hold(session, Country, "aa")
    change(session, country)
    country = session.get_one(Country, "cc")
    country.total = 1
    session.get_one(City, 1).value = 1
    session.get_one(River, 1).value = 1
    session.add(City(id=9, code="cc"))
    session.flush()
    session.execute(sa.update(City).where(City.code == "cc").values(value=2))
    assert session.held_locks[Country, ("cc",)] is LockOptions.ForUpdate
    assert session.get_entity(Country, "cc", LockOptions.ForUpdate) is country
    session.commit()
    assert stored(Country.total, "cc") == 1


@pytest.mark.usefixtures("_with_foreign_keys")
def test_key_and_parts_are_changed_in_one_flush(session: LockingSession) -> None:
    (country,) = hold(session, Country, "aa")
    session.add(City(id=9, code="cc"))
    country.code = "cc"
    session.commit()


@pytest.mark.usefixtures("_with_foreign_keys")
def test_another_document_is_refused_all_the_same(session: LockingSession) -> None:
    (country,) = hold(session, Country, "aa")
    country.code = "cc"
    session.flush()
    city = session.get_one(City, 2)
    city.value = 1
    with refused(session, Country, "bb"):
        session.flush()


@pytest.mark.usefixtures("_with_foreign_keys")
def test_without_the_lock_a_key_cannot_be_changed(session: LockingSession) -> None:
    country = session.get_one(Country, "aa")
    country.code = "cc"
    with refused(session, Country, "aa", "'code'"):
        session.flush()


@pytest.mark.usefixtures("_with_foreign_keys")
def test_a_rollback_to_a_savepoint_takes_the_new_key_back(session: LockingSession) -> None:
    session.begin()
    (country,) = hold(session, Country, "aa")
    with session.begin_nested() as savepoint:
        country.code = "cc"
        session.flush()
        savepoint.rollback()
    assert list(session.held_locks) == [(Country, ("aa",))]
    country.total = 1
    session.flush()
    session.add(Country(code="cc"))
    session.flush()


@pytest.mark.usefixtures("_with_foreign_keys")
def test_the_key_of_a_new_document_is_changed(session: LockingSession) -> None:
    session.add(country := Country(code="dd"))
    session.flush()
    country.code = "ee"
    session.flush()
    session.add(City(id=9, code="ee"))
    country.total = 1
    session.commit()


# --------------------------------------------------------------------------------------------------
# One flush deletes a row and inserts it again: SQLAlchemy sends one UPDATE for both.


def replace(session: LockingSession, old: Any, new: Any) -> None:
    with session.no_autoflush:
        session.delete(old)
        session.add(new)
    session.flush()


@rows(
    "header, part, values",
    [
        (Order, Line, {"order_id": 1, "value": 7}),
        (Fault, Repair, {"fault_id": 1, "hours": 7}),
        (Box, None, {"total": 7}),
        (Contract, None, {"total": 7, "terms_id": None}),
    ],
)
def test_of_a_held_document_it_is_written(
    session: LockingSession, header: Any, part: Any, values: dict[str, int]
) -> None:
    held = hold(session, header, 1)
    entity = part or header
    replace(session, session.get_one(entity, 1), entity(id=1, **values))
    session.expire_all()
    found = session.get_one(entity, 1)
    assert {name: getattr(found, name) for name in values} == values
    session.rollback()
    assert held


@rows(
    "header, part, values",
    [(Order, Line, {"order_id": 2}), (Ticket, Repair, {"fault_id": 2})],
)
def test_a_part_that_comes_to_another_document_is_refused(
    session: LockingSession, header: Any, part: Any, values: dict[str, int]
) -> None:
    held = hold(session, header, 1)
    with refused(session, header, 2):
        replace(session, session.get_one(part, 1), part(id=1, **values))
    session.rollback()
    assert held


@pytest.mark.parametrize("entity", [Box, Contract])
def test_a_header_is_refused_without_its_lock(session: LockingSession, entity: Any) -> None:
    with refused(session, entity, 2):
        replace(session, session.get_one(entity, 2), entity(id=2, total=7))


def test_a_held_header_does_not_take_the_key_of_another(session: LockingSession) -> None:
    held = hold(session, Box, 1)
    with refused(session, Box, 2), session.no_autoflush:
        session.get_one(Box, 2).id, held[0].id = 9, 2
        session.flush()
