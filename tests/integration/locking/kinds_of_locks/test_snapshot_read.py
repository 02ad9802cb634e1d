"""SnapshotRead: a consistent read that neither waits nor blocks, alone in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions, LockUpgradeRefused, WrongIsolation
from tests.integration.locking.expectations import (
    GOES_ON,
    WAITS_AT_COMMIT,
    WRITER_AFTER_SNAPSHOT,
    on,
)
from tests.integration.locking.steps import (
    Seen,
    add_ten,
    locks,
    read_again,
    reads,
    recorded,
    roll_back,
    save,
    seen,
)
from tests.support.actors import Actor
from tests.support.models import Customer, Line, Order, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

SnapshotRead = LockOptions.SnapshotRead


Session = Actor[LockingSession]


def test_it_does_not_wait_for_a_writer(alice: Session, bob: Session) -> None:
    alice.does(add_ten)
    assert bob.does(reads(SnapshotRead)) == (30, [10, 20])


@on(WRITER_AFTER_SNAPSHOT, GOES_ON)
def test_a_writer_does_not_wait_for_it(alice: Session, bob: Session) -> None:
    order = alice.does(locks(Order, 1, SnapshotRead))
    bob.does(add_ten)
    bob.does(save)
    assert alice.does(lambda _: (order.total, [line.value for line in order.lines])) == (
        30,
        [10, 20],
    )
    assert alice.does(read_again) == (30, [10, 20])
    alice.does(roll_back)
    assert alice.does(reads(SnapshotRead)) == (40, [20, 20])


@on(WRITER_AFTER_SNAPSHOT, WAITS_AT_COMMIT)
def test_a_writer_waits_for_it_before_it_commits(alice: Session, bob: Session) -> None:
    alice.does(reads(SnapshotRead))
    bob.does(add_ten)
    queued = bob.starts(save)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert alice.does(read_again) == (30, [10, 20])
    alice.does(roll_back)
    queued.result()


@on(WRITER_AFTER_SNAPSHOT, GOES_ON)
def test_documents_read_in_one_snapshot_belong_together(
    session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    first = session.get_one_entity(Order, 1, SnapshotRead)
    elsewhere(sa.update(Order).values(total=99))
    second = session.get_one_entity(Order, 2, SnapshotRead)
    assert (first.total, second.total) == (30, 5)


def test_it_is_refused_in_a_transaction_that_is_open(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    with pytest.raises(WrongIsolation, match=r"Order 2 SNAPSHOT READ on .*: a snapshot starts"):
        session.get_entity(Order, 2, SnapshotRead)
    session.get_one_entity(Order, 1).total = 31  # no statement was sent: the transaction continues
    session.save_changes()


@pytest.mark.not_databases("sqlite")  # sqlite3 reads outside any transaction
def test_it_is_refused_after_a_plain_read(session: LockingSession) -> None:
    session.get_one(Order, 2)
    with pytest.raises(WrongIsolation):
        session.get_entity(Order, 1, SnapshotRead)


def test_another_lock_is_refused_after_it(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    for lock in (LockOptions.ForUpdate, LockOptions.SharedRead):
        with pytest.raises(WrongIsolation, match="read-only"):
            session.get_entity(Order, 2, lock)
    assert session.get_one_entity(Order, 2, SnapshotRead).total == 5


def test_a_flush_after_it_is_refused_before_anything_is_sent(
    engine: sa.Engine, session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    session.get_one_entity(Order, 1, SnapshotRead).total = 99
    with recorded(engine) as statements, pytest.raises(WrongIsolation, match="read-only"):
        session.save_changes()
    assert statements == []
    session.rollback()
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30,)]


def test_a_bulk_write_after_it_is_refused_before_it_is_sent(
    engine: sa.Engine, session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    with recorded(engine) as statements, pytest.raises(WrongIsolation, match="read-only"):
        session.execute(sa.update(Order).values(total=99))
    assert statements == []
    session.commit()
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30,)]


def test_the_next_transaction_may_write(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    session.release_locks()
    session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
    session.save_changes()


@pytest.mark.databases("sqlite")  # there a plain read is outside any transaction
def test_a_plain_read_before_it_makes_no_difference_on_sqlite(session: LockingSession) -> None:
    known = session.get_one(Customer, 1)
    session.get_one_entity(Order, 1, SnapshotRead).total = 99
    with pytest.raises(WrongIsolation, match="read-only"):
        session.flush()
    session.rollback()
    assert known.name == "Ann"
    session.get_one_entity(Order, 1, SnapshotRead)
    assert session.get_one_entity(Order, 2, SnapshotRead).total == 5
    session.rollback()
    assert known.name == "Ann"
    session.get_one_entity(Order, 1, SnapshotRead)
    with pytest.raises(WrongIsolation, match="read-only"):
        session.get_entity(Order, 2, LockOptions.ForUpdate)


# --------------------------------------------------------------------------------------------------
# get_document() under SnapshotRead reads header and parts at one moment, without waits or writes.

ForUpdate = LockOptions.ForUpdate
Run = Callable[..., list[Any]]


def document(lock: LockOptions = SnapshotRead) -> Callable[[LockingSession], Seen]:
    """Make the step that reads order 1 with its lines, and no other row."""

    def step(session: LockingSession) -> Seen:
        order = session.get_document(Order, 1, lock)
        assert order is not None
        assert "lines" in sa.inspect(order).dict
        return seen(order)

    return step


@contextmanager
def before_the_lines(engine: sa.Engine, act: Callable[[], None]) -> Iterator[list[str]]:
    """Act once, between the read of the header and that of its lines."""
    met: list[str] = []

    def meet(_: object, __: object, statement: str, *___: object) -> None:
        if "FROM lk_line" in statement and not met:
            met.append(statement)
            act()

    event.listen(engine, "before_cursor_execute", meet)
    yield met
    event.remove(engine, "before_cursor_execute", meet)


@pytest.mark.parametrize("first", [SnapshotRead, LockOptions.SharedRead])
@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_reader_on_sqlite_reads_through_the_writers_commit(
    alice: Actor[LockingSession], bob: Actor[LockingSession], first: LockOptions
) -> None:
    alice.does(add_ten)
    assert bob.does(document(first)) == (30, [10, 20])
    alice.does(save)
    assert bob.does(document(first)) == (30, [10, 20])


def test_it_does_not_wait_for_a_writer_in_mid_update(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(add_ten)
    assert bob.does(document()) == (30, [10, 20])
    bob.does(roll_back)
    alice.does(save)
    assert bob.does(document()) == (40, [20, 20])


@on(WRITER_AFTER_SNAPSHOT, GOES_ON)
def test_a_writer_that_commits_between_its_statements_is_not_seen(
    engine: sa.Engine, alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    other = sa.create_engine(engine.url)

    def commit_ten_more() -> None:
        with LockingSession(other) as writer:  # not on the engine with the listener
            add_ten(writer)
            writer.save_changes()

    with before_the_lines(engine, commit_ten_more) as met:
        assert bob.does(document()) == (30, [10, 20])
    assert met
    bob.does(roll_back)
    assert alice.does(document()) == (40, [20, 20])
    other.dispose()


@on(WRITER_AFTER_SNAPSHOT, GOES_ON)
@pytest.mark.read_committed
def test_without_it_the_parts_are_newer_than_the_header(
    engine: sa.Engine, bob: Actor[LockingSession]
) -> None:
    other = sa.create_engine(engine.url)

    def commit_ten_more() -> None:
        with LockingSession(other) as writer:
            add_ten(writer)
            writer.save_changes()

    with before_the_lines(engine, commit_ten_more):
        assert bob.does(document(LockOptions.None_)) == (30, [20, 20])
    other.dispose()


@on(WRITER_AFTER_SNAPSHOT, GOES_ON)
def test_documents_of_one_snapshot_are_of_one_moment(
    session: LockingSession, elsewhere: Run
) -> None:
    first = session.get_documents(Order, [1], SnapshotRead)
    elsewhere(sa.update(Order).values(total=0), sa.update(Line).values(value=0))
    second = session.get_document(Order, 2, SnapshotRead)
    voucher = session.get_document(Voucher, (2024, 1), SnapshotRead)
    assert second is not None
    assert voucher is not None
    assert [seen(first[0]), seen(second)] == [(30, [10, 20]), (5, [5])]
    assert set(session.held_locks.values()) == {SnapshotRead}
    assert len(session.held_locks) == 3


def edit_and_flush(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 99
    session.flush()


def edit_and_commit(session: LockingSession) -> None:
    session.get_one(Order, 1).lines[0].value = 99
    session.commit()


def add_and_save(session: LockingSession) -> None:
    session.add(Line(id=9, order_id=1, name="x", value=9))
    session.save_changes()


def delete_and_flush(session: LockingSession) -> None:
    session.delete(session.get_one(Order, 1).lines[0])
    session.flush()


WRITES: dict[str, Callable[[LockingSession], Any]] = {
    "flush": edit_and_flush,
    "commit": edit_and_commit,
    "save_changes": add_and_save,
    "delete": delete_and_flush,
    "ORM update": lambda s: s.execute(sa.update(Order).values(total=99)),
    "ORM delete": lambda s: s.execute(sa.delete(Line)),
    "ORM insert": lambda s: s.execute(
        sa.insert(Line), [{"id": 9, "order_id": 1, "name": "x", "value": 9}]
    ),
    "Core update": lambda s: s.execute(Order.metadata.tables["lk_order"].update().values(total=99)),
    "Core insert": lambda s: s.execute(
        Order.metadata.tables["lk_customer"].insert().values(id=9, name="x")
    ),
    "scalars": lambda s: s.scalars(sa.update(Order).values(total=99).returning(Order.id)),
    "scalar": lambda s: s.scalar(sa.delete(Line).returning(Line.id)),
    "query": lambda s: s.query(Order).update({"total": 99}, synchronize_session=False),
    "bulk_save_objects": lambda s: s.bulk_save_objects([Line(id=9, order_id=1, name="x", value=9)]),
    "bulk_insert_mappings": lambda s: s.bulk_insert_mappings(
        sa.inspect(Line), [{"id": 9, "order_id": 1, "name": "x", "value": 9}]
    ),
    "bulk_update_mappings": lambda s: s.bulk_update_mappings(
        sa.inspect(Order), [{"id": 1, "total": 99}]
    ),
}


@pytest.mark.own_logic
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_in_it_is_refused_before_it_is_sent(
    engine: sa.Engine,
    session: LockingSession,
    elsewhere: Run,
    write: Callable[[LockingSession], Any],
) -> None:
    known = session.get_document(Order, 1, SnapshotRead)
    with recorded(engine) as statements, pytest.raises(WrongIsolation, match="read-only"):
        write(session)
    assert not [text for text in statements if not text.startswith("SELECT")]
    assert known is not None
    session.rollback()
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30,)]
    assert elsewhere(sa.select(sa.func.sum(Line.value))) == [(35,)]


def test_a_lock_in_it_is_refused_before_it_is_sent(
    engine: sa.Engine, session: LockingSession
) -> None:
    session.get_document(Order, 1, SnapshotRead)
    with recorded(engine) as statements:
        with pytest.raises(LockUpgradeRefused):
            session.get_document(Order, 1, ForUpdate)
        for refused in (
            lambda: session.get_document(Order, 2, ForUpdate),
            lambda: session.get_entity(Order, 2, LockOptions.SharedRead),
            lambda: session.get_documents(Voucher, [(2024, 1)], ForUpdate),
            lambda: session.scalars(session.entity_set(Order, ForUpdate)),
        ):
            with pytest.raises(WrongIsolation, match="read-only"):
                refused()
    assert statements == []
    assert session.get_document(Order, 2, SnapshotRead) is not None


def test_the_next_transaction_writes(session: LockingSession, elsewhere: Run) -> None:
    session.get_document(Order, 1, SnapshotRead)
    session.release_locks()
    order = session.get_document(Order, 1, ForUpdate)
    assert order is not None
    order.lines[0].value, order.total = 20, 40
    session.save_changes()
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(40,)]
