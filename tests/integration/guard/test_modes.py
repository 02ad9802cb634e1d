"""guard="raise", "warn" and "off"."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    UnlockedWrite,
    UnlockedWriteWarning,
    WrongIsolation,
)
from sa_doclock.errors import PAGE
from tests.integration.guard.models import Customer, Line, Order, Tag, Tax
from tests.integration.guard.steps import hold, pending, refused
from tests.support.databases import Database

pytestmark = pytest.mark.quick


MakeSession = Callable[..., LockingSession]
Stored = Callable[[Any, Any], Any]


def line_number_of(function: Callable[..., Any], offset: int) -> int:
    """Return the line this far below the ``def`` of a function."""
    first: int = function.__code__.co_firstlineno
    return first + offset


def change_line(session: LockingSession) -> Line:
    (line := session.get_one(Line, 1)).value = 11
    return line


def test_raise_is_the_default(make_session: MakeSession) -> None:
    for session in (make_session(), make_session(guard="raise")):
        line = change_line(session)
        with pytest.raises(UnlockedWrite):
            session.flush()
        session.rollback()
        assert line.value == 10


def flush_here(session: LockingSession) -> None:
    session.flush()


def execute_here(session: LockingSession) -> None:
    session.execute(sa.update(Line).where(Line.id == 1).values(value=11))


def commit_here(session: LockingSession) -> None:
    session.commit()


@pytest.mark.parametrize("write", [flush_here, execute_here, commit_here])
def test_warn_says_it_at_the_line_of_the_program_and_writes(
    make_session: MakeSession, stored: Stored, write: Callable[[LockingSession], None]
) -> None:
    session = make_session(guard="warn")
    line = None if write is execute_here else change_line(session)
    with pytest.warns(UnlockedWriteWarning, match="Line rows would be changed") as caught:
        write(session)
    (warning,) = caught
    assert "get_entity(Order, ..., LockOptions.ForUpdate)" in str(warning.message)
    assert str(warning.message).endswith(f"(Background on this warning at: {PAGE}#unlocked_write)")
    assert warning.filename == __file__
    assert warning.lineno == line_number_of(write, 1)
    session.commit()
    assert stored(Line.value, 1) == 11
    del line


def test_a_line_of_the_program_is_shown_once(make_session: MakeSession) -> None:
    session = make_session(guard="warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for ident in (1, 3, 1):  # two orders
            line = session.get_one(Line, ident)
            line.value += 1
            flush_here(session)
    assert len(caught) == 1


def test_each_document_has_a_log_record_and_an_event(
    make_session: MakeSession, caplog: pytest.LogCaptureFixture
) -> None:
    session = make_session(guard="warn")
    heard: list[tuple[object, object, str | None]] = []
    event.listen(
        session, "unlocked_write", lambda of, error, line: heard.append((of, error.ident, line))
    )
    lines = session.scalars(sa.select(Line)).all()
    for line in lines:
        line.value += 1
    with pytest.warns(UnlockedWriteWarning) as caught:
        flush_here(session)
    assert len(caught) == 1
    where = f"{__file__}:{line_number_of(flush_here, 1)}"
    assert sorted(heard, key=lambda one: str(one[1])) == [(session, 1, where), (session, 2, where)]
    records = [record for record in caplog.records if record.name == "sa_doclock"]
    fields = [(vars(one)["document"], vars(one)["outcome"], vars(one)["line"]) for one in records]
    assert sorted(fields) == [(f"Order {one}", "unlocked write", where) for one in (1, 2)]


def test_warn_says_it_again_for_the_next_flush_and_for_each_statement(
    make_session: MakeSession,
) -> None:
    session = make_session(guard="warn")
    for _ in range(2):
        session.get_one(Line, 1).value += 1
        with pytest.warns(UnlockedWriteWarning):
            session.flush()
    for _ in range(2):
        with pytest.warns(UnlockedWriteWarning) as caught:
            session.execute(sa.update(Line).values(value=1))
        assert len(caught) == 1


def test_warn_is_silent_under_the_lock(make_session: MakeSession) -> None:
    session = make_session(guard="warn")
    held = hold(session, Order, 1)
    line = change_line(session)
    session.flush()
    execute_here(session)
    assert all((held, line))


def test_a_warning_made_an_error_stops_the_write(make_session: MakeSession) -> None:
    session = make_session(guard="warn")
    line = change_line(session)
    with pytest.raises(UnlockedWriteWarning, match="Line rows"):  # like any warning under pytest
        session.flush()
    assert session.is_modified(line)


def test_off_looks_at_nothing(make_session: MakeSession, stored: Stored) -> None:
    session = make_session(guard="off")
    line = change_line(session)
    session.flush()
    session.execute(sa.delete(Tax).where(Tax.id == 3))
    session.bulk_update_mappings(Order, [{"id": 2, "total": 0}])
    session.commit()
    assert stored(Line.value, 1) == 11
    assert line.value == 11


@pytest.mark.parametrize("mode", ["no", "", None, True, "RAISE"])
def test_there_is_no_other_mode(engine: sa.Engine, mode: Any) -> None:
    with pytest.raises(ValueError, match="guard"):
        LockingSession(engine, guard=mode)


# --------------------------------------------------------------------------------------------------
# ``with session.unguarded():`` for migrations and imports.


def test_what_is_written_in_the_block_needs_no_lock(
    session: LockingSession, stored: Stored
) -> None:
    with session.unguarded():
        line = session.get_one(Line, 1)
        line.value = 11
        session.flush()
        session.execute(sa.update(Line).where(Line.id == 3).values(value=0))
        session.bulk_insert_mappings(Line, [{"id": 8, "order_id": 1}])
        session.add(Line(id=9, order_id=2))
        session.delete(session.get_one(Line, 2))
    assert not pending(session)  # flushed at the end, unguarded
    session.commit()
    assert stored(Line.value, 1) == 11
    assert stored(Line.value, 3) == 0
    assert stored(Line.id, 2) is None


def test_what_was_changed_before_it_is_guarded(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    line.value = 11
    entered = []
    with refused(session, Order, 1), session.unguarded():
        entered.append(True)
    assert not entered
    assert pending(session) == {line}


def test_what_is_changed_after_it_is_guarded(session: LockingSession) -> None:
    with session.unguarded():
        line = session.get_one(Line, 1)
        line.value = 11
    line.value = 12
    with refused(session, Order, 1):
        session.flush()


def test_an_exception_ends_it_without_a_flush(session: LockingSession) -> None:
    line = session.get_one(Line, 1)

    def fail() -> None:
        with session.unguarded():
            line.value = 11
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert pending(session) == {line}
    with refused(session, Order, 1):
        session.flush()


def test_a_refusal_at_its_start_leaves_the_guard_up(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    line.value = 11
    for _ in range(2):
        with pytest.raises(UnlockedWrite), session.unguarded():
            pass


def test_blocks_in_blocks(session: LockingSession) -> None:
    with session.unguarded():
        line = session.get_one(Line, 1)
        with session.unguarded():
            line.value = 11
        line.value = 12
    line.value = 13
    with refused(session, Order, 1):
        session.flush()


def test_a_failed_flush_at_its_end_leaves_the_guard_up(session: LockingSession) -> None:
    with pytest.raises(sa.exc.IntegrityError), session.unguarded():
        session.add(Tag(id=1, name="twice"))
    session.rollback()
    line = session.get_one(Line, 1)
    line.value = 11
    with refused(session, Order, 1):
        session.flush()


def test_documents_of_the_block_are_this_transactions(session: LockingSession) -> None:
    with session.unguarded():
        session.add(order := Order(id=9))
    order.total = 1  # invisible to other sessions until the commit
    session.commit()
    order.total = 2
    with refused(session, Order, 9):
        session.flush()


def test_a_statement_in_the_block_makes_new_documents_too(session: LockingSession) -> None:
    with session.unguarded():
        session.execute(sa.insert(Order).values(id=9))
    session.add(Line(id=9, order_id=9))
    session.commit()


def test_a_warning_at_its_start_is_reported_at_the_line_of_the_block(
    make_session: Callable[..., LockingSession],
) -> None:
    session = make_session(guard="warn")
    line = session.get_one(Line, 1)
    line.value = 11
    with pytest.warns(UnlockedWriteWarning) as caught, session.unguarded():
        pass
    assert [warning.filename for warning in caught] == [__file__]


async def await_all_of_it(session: AsyncLockingSession) -> None:
    line = await session.get_one(Line, 1)
    line.value = 11
    with pytest.raises(UnlockedWrite):
        await session.flush()
    with pytest.raises(UnlockedWrite):
        await session.unguarded().__aenter__()
    await session.rollback()
    async with session.unguarded():
        line = await session.get_one(Line, 1)
        line.value = 12
    assert not session.dirty
    with pytest.raises(KeyError):
        await fail_in_the_block(session, line)
    with pytest.raises(UnlockedWrite):
        await session.flush()
    line.value = 12
    await session.commit()


async def fail_in_the_block(session: AsyncLockingSession, line: Line) -> None:
    async with session.unguarded():
        line.value = 13
        raise KeyError


@pytest.mark.databases("sqlite")
def test_it_is_awaited_in_an_async_session(documents: Database, stored: Stored) -> None:
    async def main() -> None:
        engine = create_async_engine(sa.make_url(documents.url).set(drivername="sqlite+aiosqlite"))
        async with AsyncLockingSession(engine) as session:
            await await_all_of_it(session)
        await engine.dispose()

    asyncio.run(main())
    assert stored(Line.value, 1) == 12


# --------------------------------------------------------------------------------------------------
# with_for_update() of a declared document equals get_entity() at every isolation level.
#
# At REPEATABLE READ a plain read can predate the lock: a fresh header over old lines gives a wrong total.

Step = Callable[[LockingSession], Any]
RR = "REPEATABLE READ"
BY_SELECT = sa.select(Order).where(Order.id == 1).with_for_update()

FORMS: dict[str, Step] = {
    "execute": lambda session: session.execute(BY_SELECT).scalar_one(),
    "scalars": lambda session: session.scalars(BY_SELECT).one(),
    "read=True": lambda session: session.scalars(
        sa.select(Order).where(Order.id == 1).with_for_update(read=True)
    ).one(),
    "query": lambda session: session.query(Order).with_for_update().filter_by(id=1).one(),
    "get": lambda session: session.get(Order, 1, with_for_update=True),
    "refresh": lambda session: session.refresh(session.get_one(Order, 1), with_for_update=True),
    "a key": lambda session: session.scalar(
        sa.select(Order.id).where(Order.id == 1).with_for_update()
    ),
    "a join": lambda session: session.scalars(
        sa.select(Order).join(Order.lines).where(Line.id == 1).with_for_update(of=Order)
    ).one(),
}


def open_at(database: Database, level: str) -> LockingSession:
    return LockingSession(database.engine(isolation_level=level))


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_after_a_read_it_is_refused(documents: Database, form: Step) -> None:
    with open_at(documents, RR) as session:
        session.scalars(sa.select(Customer)).all()
        with pytest.raises(WrongIsolation, match="open at REPEATABLE READ"):
            form(session)
        session.rollback()
        assert not session.held_locks


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("form", [FORMS["execute"], FORMS["query"], FORMS["get"]])
def test_as_the_first_statement_it_reads_the_newest_lines(
    documents: Database, make_session: Callable[..., LockingSession], form: Step
) -> None:
    with open_at(documents, RR) as session:
        order = form(session)
        other = make_session(guard="off")
        other.execute(sa.update(Line).where(Line.order_id == 1).values(value=77))
        other.commit()
        assert {line.value for line in order.lines} == {77}


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("level", [RR, "SERIALIZABLE"])
def test_on_postgresql_the_statement_itself_takes_the_snapshot(
    documents: Database, level: str
) -> None:
    with open_at(documents, level) as session:
        with pytest.raises(WrongIsolation, match=f"open at {level}"):
            session.execute(BY_SELECT)
        session.rollback()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("level", ["READ COMMITTED"])
def test_at_read_committed_it_is_a_lock(documents: Database, level: str) -> None:
    with open_at(documents, level) as session:
        session.scalars(sa.select(Customer)).all()
        session.scalars(BY_SELECT).one().total = 5
        session.commit()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_of_an_undeclared_class_it_stays_sqlalchemys(documents: Database) -> None:
    with open_at(documents, RR) as session:
        session.scalars(sa.select(Customer)).all()
        session.scalars(sa.select(Customer).with_for_update()).all()
        session.commit()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_lock_of_ours_sets_the_level_for_those_after_it(documents: Database) -> None:
    with LockingSession(documents.engine()) as session:
        session.lock_key("first")
        session.scalars(BY_SELECT).one().total = 5
        session.commit()
