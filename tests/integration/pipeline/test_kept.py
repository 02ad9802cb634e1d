"""The writes kept for COMMIT are those that would have been sent, and none that may be undone."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import Bill, Note
from tests.integration.pipeline.only import ON_POSTGRESQL

pytestmark = ON_POSTGRESQL

both = pytest.mark.parametrize("pipeline", [False, True])


def numbers(elsewhere: sa.Engine) -> list[Any]:
    with elsewhere.connect() as connection:
        return list(connection.scalars(sa.select(Note.number).order_by(Note.id)))


@both
def test_with_the_parameters_of_a_listener(
    make: Sessions, engine: sa.Engine, elsewhere: sa.Engine, pipeline: bool
) -> None:
    def one(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool | None:
        if not statement.startswith("UPDATE pl_note"):
            return None
        cursor.execute(statement, {**parameters, "number": 70})
        return True

    def many(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool | None:
        if not statement.startswith("UPDATE pl_note"):
            return None
        cursor.executemany(statement, [{**row, "number": 80} for row in parameters])
        return True

    event.listen(engine, "do_execute", one)
    event.listen(engine, "do_executemany", many)
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).number = 7
    session.save_changes()
    assert numbers(elsewhere) == [70, 2, 3]
    for note in session.scalars(sa.select(Note)).all():
        note.number = 8
    session.save_changes()
    assert numbers(elsewhere) == [80, 80, 80]


@both
def test_with_what_a_listener_may_still_change(
    make: Sessions, engine: sa.Engine, elsewhere: sa.Engine, pipeline: bool
) -> None:
    class Number(int):
        """Of no type that is sure to stay as it is."""

    def one(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool | None:
        if not statement.startswith("UPDATE pl_note"):
            return None
        cursor.execute(statement, {**parameters, "number": Number(70)})
        assert cursor.rowcount == 1
        return True

    event.listen(engine, "do_execute", one)
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).number = 7
    session.save_changes()
    assert numbers(elsewhere) == [70, 2, 3]


@both
def test_its_cursor_can_read_afterwards(
    make: Sessions, engine: sa.Engine, elsewhere: sa.Engine, pipeline: bool
) -> None:
    found = []

    def one(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool | None:
        if not statement.startswith("UPDATE pl_note"):
            return None
        cursor.execute(statement, parameters)
        assert (cursor.rowcount, cursor.description) == (1, None)
        cursor.execute("SELECT number FROM pl_note WHERE id = 1")
        assert len(cursor.description) == 1
        found.append(cursor.fetchone())
        return True

    event.listen(engine, "do_execute", one)
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).number = 7
    session.save_changes()
    assert found == [(7,)]
    assert numbers(elsewhere) == [7, 2, 3]


@both
def test_nothing_in_a_savepoint(make: Sessions, elsewhere: sa.Engine, pipeline: bool) -> None:
    session, refused = make(pipeline=pipeline), []

    @event.listens_for(session, "before_commit")
    def try_something(session: LockingSession) -> None:
        if session.in_nested_transaction():
            return
        savepoint = session.begin_nested()
        session.add(Note(id=3, text="again"))
        with pytest.raises(IntegrityError) as caught:
            session.flush()
        refused.append(caught.value)
        savepoint.rollback()

    session.get_one(Note, 1).number = 50
    session.commit()
    assert len(refused) == 1
    assert numbers(elsewhere) == [50, 2, 3]


@both
@pytest.mark.filterwarnings("ignore:transaction already deassociated")
def test_nothing_of_a_transaction_that_the_program_has_rolled_back(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)

    @event.listens_for(session, "after_flush")
    def roll_back(session: LockingSession, _: object) -> None:
        connection = session.connection()
        connection.rollback()
        connection.exec_driver_sql("SELECT 1")
        connection.commit()

    session.get_one(Note, 1).number = 50
    with pytest.raises(InvalidRequestError):
        session.commit()
    session.rollback()
    assert numbers(elsewhere) == [1, 2, 3]


@both
def test_a_commit_is_refused_behind_a_lock_that_has_failed(
    make: Sessions, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)
    with elsewhere.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(sa.select(Bill.id).where(Bill.id == 1).with_for_update()).all()

        @event.listens_for(session, "before_commit")
        def fail(session: LockingSession) -> None:
            with pytest.raises(LockNotAvailable):
                session.get_one_entity(Bill, 1, LockOptions.ForUpdate | LockOptions.NoWait)

        session.get_one_entity(Note, 1, LockOptions.ForUpdate).number = 50
        session.flush()  # nothing waits for COMMIT
        with pytest.raises(PendingRollbackError):
            session.commit()
        session.rollback()
        connection.exec_driver_sql("ROLLBACK")
    assert numbers(elsewhere) == [1, 2, 3]
