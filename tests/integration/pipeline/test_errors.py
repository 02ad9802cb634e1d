"""Errors are the same as without a pipeline: the same error, of the same statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import PipelineStatus
from sqlalchemy import event
from sqlalchemy.exc import (
    DataError,
    IntegrityError,
    InternalError,
    InvalidRequestError,
    ProgrammingError,
)
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import AsyncLockingSession, LockingSession, LockNotAvailable, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import ON_POSTGRESQL, Bill, Item, Note
from tests.integration.timeouts.ways import Wire
from tests.support.databases import PGPOOL, Database
from tests.support.poolers import COUNTS_ROUND_TRIPS

pytestmark = ON_POSTGRESQL

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
both = pytest.mark.parametrize("pipeline", [False, True])


def notes(elsewhere: sa.Engine) -> dict[int, int]:
    with elsewhere.connect() as connection:
        return {row.id: row.number for row in connection.execute(sa.select(Note.id, Note.number))}


UNTOUCHED = {1: 1, 2: 2, 3: 3}


def insert_what_is_there(session: Session) -> None:
    session.get_one(Note, 1).number = 50
    session.add(Note(id=2, text="again"))


def update_to_what_may_not_be(session: Session) -> None:
    session.get_one(Bill, 1).total = 50
    session.get_one(Note, 1).number = 5
    session.get_one(Note, 3).number = 100


def too_long(session: Session) -> None:
    session.get_one(Note, 1).number = 2**40


def not_text(session: Session) -> None:
    session.get_one(Note, 1).number = 50
    session.get_one(Bill, 1).total = "many"  # type: ignore[assignment]


def no_character(session: Session) -> None:
    """The driver refuses the second of two statements, before sending it."""
    session.get_one(Bill, 1).total = 50
    session.get_one(Note, 1).text = "a\x00"


REFUSED: dict[str, tuple[Callable[[Session], None], type[Exception], str]] = {
    "a key that is there": (insert_what_is_there, IntegrityError, "INSERT INTO pl_note"),
    "a value that may not be": (update_to_what_may_not_be, IntegrityError, "UPDATE pl_note SET"),
    "a number that is too large": (too_long, DataError, "UPDATE pl_note SET"),
    "no number": (not_text, DataError, "UPDATE pl_bill SET"),
    "no character": (no_character, DataError, "UPDATE pl_note SET"),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_of_a_write(make: Sessions, elsewhere: sa.Engine, name: str, pipeline: bool) -> None:
    do, kind, statement = REFUSED[name]
    session = make(pipeline=pipeline)
    do(session)
    with pytest.raises(kind) as caught:
        session.save_changes()
    assert isinstance(caught.value, sa.exc.DBAPIError)
    assert str(caught.value.statement).startswith(statement)
    assert caught.value.params
    assert isinstance(caught.value.orig, psycopg.Error)
    with pytest.raises(InvalidRequestError):  # rollback() first
        session.scalar(sa.text("SELECT 1"))
    session.rollback()
    assert notes(elsewhere) == UNTOUCHED
    session.get_one(Note, 1).number = 7
    session.save_changes()
    assert notes(elsewhere)[1] == 7


@both
@pytest.mark.parametrize("name", REFUSED)
def test_who_closes_the_session_leaves_nothing_open(
    make: Sessions, elsewhere: sa.Engine, name: str, pipeline: bool
) -> None:
    do, kind, _ = REFUSED[name]
    session = make(pipeline=pipeline)
    do(session)
    with pytest.raises(kind):
        session.commit()
    session.close()
    second = make(pipeline=False)  # on the same connection
    second.get_one(Note, 2).number = 60
    second.commit()
    assert notes(elsewhere) == {**UNTOUCHED, 2: 60}


@both
def test_of_a_constraint_that_commit_looks_at(
    bills: Database, make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)
    session.get_one(Item, -1).bill_id = 99
    session.get_one(Note, 1).number = 50
    with pytest.raises(IntegrityError, match="pl_item_bill_id_fkey"):
        session.save_changes()
    session.rollback()
    assert notes(elsewhere) == UNTOUCHED
    if bills.column == PGPOOL:  # the first error after a failed COMMIT: docs/poolers.md
        with pytest.raises(InternalError, match="current transaction is aborted"):
            session.get_one(Item, -1)
        session.rollback()
    assert session.get_one(Item, -1).bill_id == 1


@both
def test_of_the_flush_before_another_statement(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)

    @event.listens_for(session, "before_commit")
    def read(session: Session) -> None:
        session.scalar(sa.select(sa.func.count()).select_from(Bill))

    session.get_one(Note, 1).number = 100
    with pytest.raises(IntegrityError) as caught:
        session.save_changes()
    assert str(caught.value.statement).startswith("UPDATE pl_note SET")
    session.rollback()
    assert notes(elsewhere) == UNTOUCHED


@both
def test_a_listener_for_errors_hears_of_it(make: Sessions, pipeline: bool) -> None:
    session, heard = make(pipeline=pipeline), []

    def hear(context: Any) -> None:
        heard.append((context.statement, context.original_exception.sqlstate))

    dialect = session.get_bind().dialect
    event.listen(dialect, "handle_error", hear)
    session.get_one(Note, 1).number = 100
    with pytest.raises(IntegrityError):
        session.save_changes()
    ((statement, sqlstate),) = heard
    assert statement.startswith("UPDATE pl_note SET")
    assert sqlstate == "23514"


@both
def test_the_limit_of_a_write_is_reported_by_its_name(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    with elsewhere.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(sa.select(Note).where(Note.id == 1).with_for_update())
        session = make(pipeline=pipeline)
        session.get_one_entity(Bill, 1, ForUpdate).total = 99
        session.get_one(Note, 1).number = 50
        session.connection().exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(LockNotAvailable, match=r"^the transaction on postgresql"):
            session.save_changes()
        session.rollback()
        connection.exec_driver_sql("ROLLBACK")
    assert not session.held_locks
    assert session.get_one(Bill, 1).total == 30


@both
def test_a_lock_on_nothing_is_the_programs_error(make: Sessions, pipeline: bool) -> None:
    session = make(pipeline=pipeline)
    with pytest.raises(ProgrammingError, match="pl_nowhere"):
        session.scalars(session.entity_set(Bill, ForUpdate).where(sa.text("pl_nowhere.id = 1")))
    assert not session.in_transaction()
    driver: Any = session.connection().connection.driver_connection
    assert driver.pgconn.pipeline_status == PipelineStatus.OFF


@both
def test_who_raises_before_commit_loses_nothing(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session, raising = make(pipeline=pipeline), [True]

    @event.listens_for(session, "before_commit")
    def refuse(_: Session) -> None:
        if raising:
            raise LookupError

    session.get_one(Note, 1).number = 50
    with pytest.raises(LookupError):
        session.save_changes()
    assert notes(elsewhere) == UNTOUCHED
    raising.clear()
    session.commit()
    assert notes(elsewhere)[1] == 50


@both
def test_who_raises_in_the_flush_undoes_it(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)

    @event.listens_for(session, "after_flush")
    def refuse(*_: object) -> None:
        raise LookupError

    session.get_one(Note, 1).number = 50
    with pytest.raises(LookupError):
        session.save_changes()
    session.rollback()
    session.commit()
    assert notes(elsewhere) == UNTOUCHED


# --------------------------------------------------------------------------------------------------
# A statement for many rows in a session with a hold_limit behaves as it does without one.

LIMITS = pytest.mark.parametrize("hold_limit", [None, 600])
BOTH = [{"id": -1, "value": 1}, {"id": -2, "value": 2}]
VALUES = sa.select(Item.value).order_by(Item.id)


@COUNTS_ROUND_TRIPS
@pytest.mark.parametrize("pipeline", [False, True])
@LIMITS
def test_they_travel_together(
    make: Sessions, wire: Wire, hold_limit: int | None, pipeline: bool
) -> None:
    session = make(pipeline=pipeline, hold_limit=hold_limit)
    session.get_entity(Bill, 1, ForUpdate)
    with wire.counting() as trips:
        session.execute(sa.update(Item), BOTH)
    assert trips == [1]
    assert session.scalars(VALUES).all() == [2, 1]
    session.commit()


# Without the ORM, in which SQLAlchemy counts the rows itself.
@LIMITS
def test_their_rows_are_counted(make: Sessions, hold_limit: int | None) -> None:
    session = make(pipeline=False, hold_limit=hold_limit)
    session.get_entity(Bill, 1, ForUpdate)
    statement = sa.update(Note).where(Note.id >= sa.bindparam("first")).values(text="x")
    found: Any = session.connection().execute(statement, [{"first": 2}, {"first": 3}])
    assert found.rowcount == 3  # two, and one
    with pytest.raises(StaleDataError, match=r"expected to update 2 row\(s\); 1 were matched"):
        session.execute(sa.update(Item), [BOTH[0], {"id": 99, "value": 2}])


@LIMITS
def test_the_first_error_is_raised(make: Sessions, hold_limit: int | None) -> None:
    session = make(pipeline=False, hold_limit=hold_limit)
    session.get_entity(Bill, 1, ForUpdate)
    same = [{"id": number, "text": "", "number": 1} for number in (7, 7, 8)]
    with pytest.raises(IntegrityError):
        session.connection().execute(sa.insert(Note), same)
    session.rollback()
    session.get_entity(Bill, 1, ForUpdate)
    unknown = [{"id": 7, "text": "", "number": 1}, {"id": 8, "text": object(), "number": 1}]
    with pytest.raises(ProgrammingError, match="cannot adapt type 'object'"):
        session.connection().execute(sa.insert(Note), unknown)
    session.rollback()
    session.execute(sa.insert(Note), same[1:])
    assert len(session.scalars(sa.select(Note)).all()) == 5


@in_a_loop
async def test_under_asyncio(bills: Database) -> None:
    url = sa.make_url(bills.url)
    async with (
        connected(url) as engine,
        AsyncLockingSession(engine, hold_limit=600) as session,
    ):
        await session.get_entity(Bill, 1, ForUpdate)
        await session.execute(sa.update(Item), BOTH)
        assert (await session.scalars(VALUES)).all() == [2, 1]
        with pytest.raises(StaleDataError, match=r"expected to update 2 row\(s\); 1 were matched"):
            await session.execute(sa.update(Item), [BOTH[0], {"id": 99, "value": 2}])
        await session.rollback()
        await session.get_entity(Bill, 1, ForUpdate)
