"""Fresh: the lock reads again the objects that the session loaded before.

The identity map is weak, so every test keeps the objects that should become stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker, undefer
from sqlalchemy.orm.exc import ObjectDeletedError

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.expectations import KINDS
from tests.integration.locking.steps import Seen, add_ten, move_five, read_again, seen
from tests.support.models import Account, Clause, Contract, Entry, Lease, Line, Order, Voucher

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
LOCKS = [ForUpdate, SharedRead, LockOptions.SnapshotRead]
Run = Callable[..., list[Any]]


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Return a factory of sessions whose objects outlive a commit."""
    return sessionmaker(engine, class_=LockingSession, expire_on_commit=False)


def header(session: LockingSession) -> list[Any]:
    return [session.get_one(Order, 1)]


def header_and_collection(session: LockingSession) -> list[Any]:
    order = session.get_one(Order, 1)
    return [order, *order.lines]


def header_and_lines(session: LockingSession) -> list[Any]:
    return [session.get_one(Order, 1), *session.scalars(sa.select(Line))]


def lines(session: LockingSession) -> list[Any]:
    return [*session.scalars(sa.select(Line))]


ACQUAINTANCES = (header, header_and_collection, header_and_lines, lines)


def change(write: Callable[[LockingSession], None], other: LockingSession) -> Seen:
    """Let another session write and commit, and return the new state of the database."""
    before = read_again(other)
    other.rollback()
    write(other)
    other.save_changes()
    after = read_again(other)
    other.rollback()
    assert after != before
    return after


@pytest.mark.read_committed
@pytest.mark.parametrize("write", [add_ten, move_five])
def test_what_was_loaded_in_this_transaction(
    session: LockingSession, other: LockingSession, write: Callable[[LockingSession], None]
) -> None:
    for get_to_know in ACQUAINTANCES:
        known = get_to_know(session)
        after = change(write, other)
        assert seen(session.get_one_entity(Order, 1, ForUpdate)) == after, get_to_know
        assert all(one in session for one in known)
        session.close()


@pytest.mark.read_committed
@pytest.mark.parametrize("lock", LOCKS)
def test_what_was_loaded_in_an_earlier_transaction(
    session: LockingSession, other: LockingSession, lock: LockOptions
) -> None:
    for get_to_know in ACQUAINTANCES:
        known = get_to_know(session)
        session.commit()
        after = change(add_ten, other)
        assert seen(session.get_one_entity(Order, 1, lock)) == after, get_to_know
        assert all(one in session for one in known)
        session.close()


@pytest.mark.read_committed
@pytest.mark.parametrize("lock", LOCKS)
def test_what_a_set_reads(
    session: LockingSession, other: LockingSession, lock: LockOptions
) -> None:
    for get_to_know in ACQUAINTANCES:
        known = get_to_know(session)
        session.commit()
        after = change(add_ten, other)
        first, _ = session.scalars(session.entity_set(Order, lock).order_by(Order.id))
        assert seen(first) == after, get_to_know
        assert all(one in session for one in known)
        session.close()


@pytest.mark.read_committed
def test_what_this_session_has_written_itself(session: LockingSession, elsewhere: Run) -> None:
    order = Order(id=3, total=1, lines=[Line(id=9, name="x", value=1)])
    session.add(order)
    session.commit()
    elsewhere(
        sa.update(Order).where(Order.id == 3).values(total=2),
        sa.update(Line).where(Line.order_id == 3).values(value=2),
    )
    session.get_one_entity(Order, 3, ForUpdate)
    assert seen(order) == (2, [2])


@pytest.mark.read_committed
@pytest.mark.parametrize("lock", LOCKS)
def test_every_kind_of_mapping(session: LockingSession, elsewhere: Run, lock: LockOptions) -> None:
    for total, kind in enumerate(KINDS):  # two of them are the same row
        known = session.get_one(kind.entity, kind.ident)
        session.commit()
        elsewhere(kind.write_total(total))
        assert session.get_one_entity(kind.entity, kind.ident, lock) is known, kind
        assert known.total == total, kind
        session.commit()


@pytest.mark.read_committed
def test_the_row_of_the_subclass(session: LockingSession, elsewhere: Run) -> None:
    lease = session.get_one(Lease, 1)
    session.commit()
    elsewhere(sa.update(Lease.__table__).values(rent=200))  # type: ignore[arg-type]
    session.get_one_entity(Lease, 1, ForUpdate)
    assert lease.rent == 200


@pytest.mark.read_committed
def test_a_version_that_another_has_counted_up(session: LockingSession, elsewhere: Run) -> None:
    account = session.get_one(Account, 1)
    session.commit()
    elsewhere(sa.update(Account).where(Account.id == 1).values(total=99, version=2))
    session.get_one_entity(Account, 1, ForUpdate)
    account.total += 1
    session.save_changes()
    assert elsewhere(sa.select(Account.total, Account.version).where(Account.id == 1)) == [(100, 3)]


@pytest.mark.read_committed
def test_a_deferred_column_that_was_loaded(session: LockingSession, elsewhere: Run) -> None:
    order = session.get_one(Order, 1, options=[undefer(Order.remark)])
    session.commit()
    elsewhere(sa.update(Order).values(remark="changed"))
    session.get_one_entity(Order, 1, ForUpdate)
    assert order.remark == "changed"


@pytest.mark.read_committed
def test_a_deferred_column_that_was_not_loaded_stays_so(session: LockingSession) -> None:
    order = session.get_one(Order, 1)
    session.commit()
    session.get_one_entity(Order, 1, ForUpdate)
    assert "remark" in sa.inspect(order).unloaded


# --------------------------------------------------------------------------------------------------
# Other sessions change, add, remove or move details that this session has already read.


def by_collection(session: LockingSession) -> list[Any]:
    """Load both orders with their lines."""
    orders = session.scalars(sa.select(Order)).all()
    return [(order, list(order.lines)) for order in orders]


def by_query(session: LockingSession) -> list[Any]:
    """Load the lines separately."""
    return list(session.scalars(sa.select(Line)))


def change_details(line: int, **values: object) -> sa.Update:
    return sa.update(Line).where(Line.id == line).values(values)


#: Another session's change of the lines, and the resulting order 1.
ACTIONS: dict[str, tuple[sa.Executable, Seen]] = {
    "changed": (change_details(1, value=11), (30, [11, 20])),
    "added": (
        sa.insert(Line).values(id=4, order_id=1, name="d", value=7),
        (30, [10, 20, 7]),
    ),
    "removed": (sa.delete(Line).where(Line.id == 2), (30, [10])),
    "moved here": (change_details(3, order_id=1), (30, [10, 20, 5])),
    "moved here and changed": (change_details(3, order_id=1, value=6), (30, [10, 20, 6])),
    "moved away": (change_details(2, order_id=2), (30, [10])),
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
    elsewhere(change_details(3, order_id=1))
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
