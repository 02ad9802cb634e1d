"""Details that others change, add, remove or move, while the session knows them as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker
from sqlalchemy.orm.exc import ObjectDeletedError

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import Seen, seen
from tests.support.models import Clause, Contract, Entry, Lease, Line, Order, Voucher

ForUpdate = LockOptions.ForUpdate
Run = Callable[..., list[Any]]


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Make sessions whose objects outlive a commit."""
    return sessionmaker(engine, class_=LockingSession, expire_on_commit=False)


def by_collection(session: LockingSession) -> list[Any]:
    """Load both orders, their lines with them."""
    orders = session.scalars(sa.select(Order)).all()
    return [(order, list(order.lines)) for order in orders]


def by_query(session: LockingSession) -> list[Any]:
    """Load the lines by themselves."""
    return list(session.scalars(sa.select(Line)))


def change(line: int, **values: object) -> sa.Update:
    return sa.update(Line).where(Line.id == line).values(values)


#: What another did to the lines, and what order 1 looks like then.
ACTIONS: dict[str, tuple[sa.Executable, Seen]] = {
    "changed": (change(1, value=11), (30, [11, 20])),
    "added": (
        sa.insert(Line).values(id=4, order_id=1, name="d", value=7),
        (30, [10, 20, 7]),
    ),
    "removed": (sa.delete(Line).where(Line.id == 2), (30, [10])),
    "moved here": (change(3, order_id=1), (30, [10, 20, 5])),
    "moved here and changed": (change(3, order_id=1, value=6), (30, [10, 20, 6])),
    "moved away": (change(2, order_id=2), (30, [10])),
}


@pytest.mark.parametrize("get_to_know", [by_collection, by_query])
def test_lines_are_as_another_left_them(
    session: LockingSession,
    elsewhere: Run,
    start_over: Callable[[], None],
    get_to_know: Callable[[LockingSession], list[Any]],
) -> None:
    for name, (action, expected) in ACTIONS.items():
        known = get_to_know(session)
        session.commit()
        elsewhere(action)
        assert seen(session.get_one_entity(Order, 1, ForUpdate)) == expected, name
        assert known
        session.close()
        start_over()


def test_a_line_that_moved_here_knows_its_header(session: LockingSession, elsewhere: Run) -> None:
    line = session.get_one(Line, 3)
    assert line.order.id == 2
    session.commit()
    elsewhere(change(3, order_id=1))
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert line.order is order
    assert line.order_id == 1


def test_a_line_that_was_removed_is_no_more(session: LockingSession, elsewhere: Run) -> None:
    line = session.get_one(Line, 2)
    session.commit()
    elsewhere(sa.delete(Line).where(Line.id == 2))
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(ObjectDeletedError):
        _ = line.value


def test_lines_of_a_document_held_already_are_not_read_again(session: LockingSession) -> None:
    second = session.get_one_entity(Order, 2, ForUpdate)
    (line,) = second.lines
    session.get_one_entity(Order, 1, ForUpdate)
    assert "value" in sa.inspect(line).dict
    assert "lines" in sa.inspect(second).dict


def test_details_of_a_composite_key(session: LockingSession, elsewhere: Run) -> None:
    voucher = session.get_one(Voucher, (2024, 1))
    entries = list(voucher.entries)
    session.commit()
    elsewhere(sa.update(Entry).where(Entry.id == 1).values(value=29))
    elsewhere(sa.update(Entry).where(Entry.id == 2).values(number=1))
    session.get_one_entity(Voucher, (2024, 1), ForUpdate)
    assert [entry.value for entry in voucher.entries] == [29, 5]
    assert entries[0].value == 29


@pytest.mark.parametrize("entity", [Contract, Lease])
def test_details_of_joined_inheritance(
    session: LockingSession, elsewhere: Run, entity: type[Contract]
) -> None:
    contract = session.get_one(Contract, 1)
    clauses = list(contract.clauses)
    session.commit()
    elsewhere(sa.update(Clause).where(Clause.id == 1).values(value=29))
    session.get_one_entity(entity, 1, ForUpdate)
    assert [clause.value for clause in contract.clauses] == [29]
    assert clauses[0].value == 29
