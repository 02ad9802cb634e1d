"""Rows read ahead are used only as long as a new read would return the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import OperationalError, ProgrammingError, SAWarning
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import AsyncLockingSession, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects.postgresql.pipelined_lock import PipelinedLock
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import ON_POSTGRESQL, Bill, Item, Note
from tests.integration.timeouts.ways import Wire
from tests.support.databases import Database
from tests.support.poolers import COUNTS_ROUND_TRIPS

pytestmark = ON_POSTGRESQL

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
both = pytest.mark.parametrize("pipeline", [False, True])


def values(session: Session) -> list[int] | None:
    bill = session.get_document(Bill, 1, ForUpdate)
    return None if bill is None else [item.value for item in bill.items]


@pytest.fixture
def on_load() -> Iterator[Callable[[Callable[[Session], object]], None]]:
    """Return a function that runs another when a bill is loaded."""
    listening: list[Callable[..., None]] = []

    def add(function: Callable[[Session], object]) -> None:
        def hear(_target: object, context: Any) -> None:
            function(context.session)

        event.listen(Bill, "load", hear)
        listening.append(hear)

    yield add
    for hear in listening:
        event.remove(Bill, "load", hear)


@both
def test_not_after_a_statement_that_has_written(
    make: Sessions, on_load: Callable[[Callable[[Session], object]], None], pipeline: bool
) -> None:
    on_load(lambda session: session.connection().execute(sa.update(Item).values(value=77)))
    assert values(make(pipeline=pipeline)) == [77, 77]


@both
def test_not_of_a_document_that_is_not_there(make: Sessions, pipeline: bool) -> None:
    session = make(pipeline=pipeline)
    assert session.get_document(Bill, 99, ForUpdate) is None
    assert values(session) == [10, 20]


@COUNTS_ROUND_TRIPS
def test_not_for_another_document(wire: Wire, session: Session) -> None:
    assert values(session) == [10, 20]
    with wire.counting() as counted:
        second = session.get_document(Bill, 2, ForUpdate)
    assert second is not None
    assert second.items == []
    assert counted == [1]


LOCKS_OF_LISTENERS: dict[str, Callable[[Session], object]] = {
    "another document": lambda session: session.get_document(Bill, 2, ForUpdate),
    "keys": lambda session: session.get_entities(Bill, [2], ForUpdate),
    "a set": lambda session: session.scalars(session.entity_set(Bill, ForUpdate)).all(),
    "a name": lambda session: session.lock_key("a name"),
}


@both
@pytest.mark.parametrize("lock", LOCKS_OF_LISTENERS.values(), ids=LOCKS_OF_LISTENERS)
def test_a_listener_may_lock_while_the_parts_are_read(
    make: Sessions, lock: Callable[[Session], object], pipeline: bool
) -> None:
    session, locked = make(pipeline=pipeline), list[bool]()

    def hear(_item: Item, context: Any) -> None:
        if not locked:
            locked.append(True)
            lock(context.session)

    event.listen(Item, "load", hear)
    try:
        assert values(session) == [10, 20]
    finally:
        event.remove(Item, "load", hear)
    assert locked
    session.commit()
    assert values(session) == [10, 20]


class Next(sa.TypeDecorator[int]):
    """A type whose values are converted before they reach the driver."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> Any:
        return value + 1


@COUNTS_ROUND_TRIPS
def test_by_a_value_that_its_type_processes(wire: Wire, engine: sa.Engine) -> None:
    read = sa.select(Item.value).where(Item.bill_id == sa.bindparam("bill", type_=Next()))
    lock = sa.select(Bill.id).where(Bill.id == 1).with_for_update()
    with engine.connect() as connection:
        travels = PipelinedLock(connection, None, lambda: [(read, {"bill": 0})])
        with wire.counting() as counted, travels:
            connection.execute(lock).all()
            assert sorted(connection.scalars(read, {"bill": 0})) == [10, 20]
    assert counted == [1]


def test_after_a_failure_nothing_of_it_is_left(
    session: Session, elsewhere: sa.Engine, engine: sa.Engine
) -> None:
    with elsewhere.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(sa.select(Bill).where(Bill.id == 1).with_for_update())
        with pytest.raises(LockNotAvailable):
            session.get_document(Bill, 1, ForUpdate, lock_timeout=0.05)
        connection.exec_driver_sql("ROLLBACK")
    with engine.connect() as pooled:
        driver: Any = pooled.connection.driver_connection
        assert driver.cursor_factory.__module__ == "psycopg"
    with elsewhere.connect() as connection:
        connection.execute(sa.update(Item).values(value=5))
    assert values(session) == [5, 5]


@COUNTS_ROUND_TRIPS
@in_a_loop
async def test_under_asyncio_as_well(wire: Wire, engine: sa.Engine) -> None:
    async with (
        connected(engine.url, pool_size=1, max_overflow=0) as through,
        AsyncLockingSession(through, pipeline=True) as session,
    ):
        await session.get_entity(Bill, 1, ForUpdate)
        await session.rollback()
        with wire.counting() as counted:
            bill = await session.get_document(Bill, 1, ForUpdate, lock_timeout=29.5)
            assert bill is not None
            bill.total = 1
            bill.items[0].value = 1
            await session.save_changes()
    assert counted == [2]


# --------------------------------------------------------------------------------------------------
# Unreadable parts: their own SELECT fails, not the lock that traveled with it.


@both
def test_a_table_that_is_not_there(bills: Database, pipeline: bool) -> None:
    engine = bills.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE pl_item")
    with LockingSession(engine, pipeline=pipeline) as session:
        with pytest.raises(ProgrammingError, match="pl_item") as caught:
            session.get_document(Bill, 1, ForUpdate, lock_timeout=29.5)
        assert "FROM pl_item" in str(caught.value.statement)
        session.rollback()
        assert session.get_one_entity(Bill, 1, ForUpdate).total == 30


@both
def test_a_table_that_is_locked_too_long(bills: Database, pipeline: bool) -> None:
    engine = bills.engine()
    with bills.engine().begin() as other:
        other.exec_driver_sql("LOCK TABLE pl_item IN ACCESS EXCLUSIVE MODE")
        with LockingSession(engine, pipeline=pipeline) as session:
            session.execute(sa.text("SET LOCAL statement_timeout = 300"))
            with pytest.raises(OperationalError, match="statement timeout") as caught:
                session.get_document(Bill, 1, ForUpdate, lock_timeout=29.5)
            assert "FROM pl_item" in str(caught.value.statement)


def test_where_nobody_asks_for_them(bills: Database) -> None:
    engine = bills.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE pl_item")
    with LockingSession(engine, pipeline=True) as session:
        with pytest.raises(ProgrammingError, match="pl_item"):
            session.get_document(Bill, 99, ForUpdate)
        session.rollback()
        assert session.get_one_entity(Bill, 1, ForUpdate).total == 30


def test_the_lock_that_is_lost_with_a_read_nobody_asks_for_is_not_passed_over(
    bills: Database,
) -> None:
    nowhere: sa.Select[Any] = sa.select(sa.column("id")).select_from(sa.table("pl_nowhere"))
    lock = sa.select(Bill.id).where(Bill.id == 1).with_for_update()
    with bills.engine().connect() as connection:
        travels = PipelinedLock(connection, None, lambda: [(nowhere, {})])
        with pytest.raises(ProgrammingError, match="pl_nowhere"), travels:
            assert connection.scalars(lock).all() == [1]
        connection.rollback()
        assert connection.scalars(lock).all() == [1]


# --------------------------------------------------------------------------------------------------
# An UPDATE that does not find its row raises StaleDataError, and nothing is committed.


def versions_of(elsewhere: sa.Engine) -> list[Any]:
    with elsewhere.connect() as connection:
        return list(connection.scalars(sa.select(Bill.version).order_by(Bill.id)))


def texts(elsewhere: sa.Engine) -> dict[int, str]:
    with elsewhere.connect() as connection:
        return {row.id: row.text for row in connection.execute(sa.select(Note.id, Note.text))}


def run(elsewhere: sa.Engine, *statements: sa.Executable) -> None:
    with elsewhere.connect() as connection:
        for statement in statements:
            connection.execute(statement)


def another_was_first(session: Session, elsewhere: sa.Engine) -> None:
    """Change bill 1, which another session has changed since it was read, together with a note."""
    bill = session.get_one(Bill, 1)
    session.get_one(Note, 1).text = "never"
    bill.total = 99
    run(elsewhere, sa.update(Bill).where(Bill.id == 1).values(version=2))


ENDS: dict[str, Callable[[Session], None]] = {
    "save_changes": lambda session: session.save_changes(),
    "commit": lambda session: session.commit(),
}


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_another_version(make: Sessions, elsewhere: sa.Engine, end: str, pipeline: bool) -> None:
    session = make(pipeline=pipeline)
    another_was_first(session, elsewhere)
    with pytest.raises(
        StaleDataError,
        match=r"UPDATE statement on table 'pl_bill' expected to update 1 row\(s\); 0 were matched",
    ):
        ENDS[end](session)
    assert texts(elsewhere)[1] == ""
    session.rollback()
    assert session.get_one(Bill, 1).version == 2
    session.get_one(Note, 1).text = "now"
    session.commit()
    assert texts(elsewhere)[1] == "now"


def test_its_locks_are_released_at_once(session: Session, elsewhere: sa.Engine) -> None:
    another_was_first(session, elsewhere)
    with pytest.raises(StaleDataError):
        session.commit()
    run(elsewhere, sa.text("SET lock_timeout = '5s'"), sa.update(Note).values(text="free"))
    assert set(texts(elsewhere).values()) == {"free"}


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_row_that_is_gone(make: Sessions, elsewhere: sa.Engine, pipeline: bool) -> None:
    session = make(pipeline=pipeline)
    notes = session.scalars(sa.select(Note).order_by(Note.id)).all()
    run(elsewhere, sa.delete(Note).where(Note.id == 2))
    for note in notes:
        note.text = "never"
    with pytest.raises(StaleDataError, match=r"'pl_note' expected to update 3 row\(s\)"):
        session.save_changes()
    assert texts(elsewhere) == {1: "", 3: ""}


@pytest.mark.parametrize("pipeline", [False, True])
def test_an_expression_of_the_server(make: Sessions, elsewhere: sa.Engine, pipeline: bool) -> None:
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).number = Note.number + 1
    session.commit()
    assert session.get_one(Note, 1).number == 2
    session.get_one(Note, 1).number = Note.number + 1
    run(elsewhere, sa.delete(Note).where(Note.id == 1))
    with pytest.raises(StaleDataError):
        session.commit()


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_delete_of_a_version_that_is_not_there(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).text = "never"
    with session.no_autoflush:
        session.delete(session.get_one(Bill, 2))
    run(elsewhere, sa.update(Bill).where(Bill.id == 2).values(version=2))
    with pytest.raises(StaleDataError, match="DELETE statement on table 'pl_bill'"):
        session.commit()
    assert versions_of(elsewhere) == [1, 2]
    assert texts(elsewhere)[1] == ""


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_delete_of_a_row_that_is_gone_is_a_warning(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)
    session.get_one(Note, 2).text = "kept"
    with session.no_autoflush:
        session.delete(session.get_one(Note, 1))
    run(elsewhere, sa.delete(Note).where(Note.id == 1))
    with pytest.warns(SAWarning, match="DELETE statement on table 'pl_note' expected to delete 1"):
        session.commit()
    assert texts(elsewhere) == {2: "kept", 3: ""}


@pytest.mark.parametrize("pipeline", [False, True])
def test_what_a_listener_updates_may_find_nothing(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session, counts = make(pipeline=pipeline), []

    def count(_mapper: object, connection: sa.Connection, _target: object) -> None:
        for key in (99, 2):
            note = sa.update(Note).where(Note.id == key).values(text="heard")
            counts.append(connection.execute(note).rowcount)

    def count_in_session(session: Session, _context: object) -> None:
        rows = [{"id": 1, "text": "nobody"}, {"id": 3, "text": "somebody"}]
        third = sa.update(Note).where(Note.number == 3)
        session.execute(third, rows, execution_options={"synchronize_session": None})

    event.listen(Item, "after_update", count)
    event.listen(session, "after_flush", count_in_session)
    try:
        session.get_one(Bill, 1).items[0].value += 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session.save_changes()
    finally:
        event.remove(Item, "after_update", count)
    assert counts == [0, 1]
    assert texts(elsewhere) == {1: "", 2: "heard", 3: "somebody"}
