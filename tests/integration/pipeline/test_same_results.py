"""A flush commits the same with a pipeline as without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.pq import PipelineStatus
from sqlalchemy import event
from sqlalchemy.schema import CreateTable

from sa_doclock import LockingSession, LockOptions
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import ON_POSTGRESQL, Base, Bill, Item, Note
from tests.support.databases import Database
from tests.support.poolers import skip_server_cursor

pytestmark = [pytest.mark.quick, *ON_POSTGRESQL]

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Play = Callable[[Session], Any]


def everything(session: Session) -> Any:
    """Insert, update and delete, with server-generated values and a deferred constraint."""
    bill = session.get_document(Bill, 1, ForUpdate)
    assert bill is not None
    bill.total = 5
    new = Item(name="c", value=5)
    bill.items = [new]
    session.add(Bill(id=3, total=1, items=[Item(name=f"n{n}", value=n) for n in range(3)]))
    session.get_one(Note, 1).text = "seen"
    session.add_all([Note(id=n, text="new") for n in (7, 8, 9)])
    session.save_changes()
    return new.id is not None, new.stamp, bill.version


def in_steps(session: Session) -> Any:
    """Savepoints, one rolled back, with a flush in between."""
    session.get_one_entity(Bill, 1, ForUpdate).total = 1
    session.flush()
    with session.begin_nested():
        session.get_one(Note, 1).text = "in it"
    nested = session.begin_nested()
    session.get_one(Note, 2).text = "undone"
    session.flush()
    nested.rollback()
    session.get_one(Note, 3).text = "after it"
    session.commit()
    return session.get_one(Note, 2).text


def open_savepoint(session: Session) -> Any:
    """A commit with an open savepoint commits both."""
    session.begin_nested()
    session.get_one(Note, 1).text = "both"
    session.commit()
    return session.in_transaction()


def reads_in_the_midst(session: Session) -> Any:
    """A listener that reads what the flush has written, in every possible way."""
    seen: list[Any] = []
    number = sa.select(Note.number).where(Note.id == 1)

    @event.listens_for(session, "after_flush")
    def read(session: Session, _: object) -> None:
        connection = session.connection()
        driver: Any = connection.connection.driver_connection
        once = sa.Table(
            "pl_once", sa.MetaData(), sa.Column("id", sa.Integer), prefixes=["TEMPORARY"]
        )
        connection.execute(CreateTable(once))
        connection.exec_driver_sql("DROP TABLE pl_once")
        seen.append(connection.scalar(number))
        connection.execute(sa.update(Note).where(Note.id == 1).values(number=Note.number + 1))
        seen.append(connection.execution_options(stream_results=True).scalar(number))
        cursor = driver.execute("UPDATE pl_note SET number = number + 1 WHERE id = 1")
        seen.extend([cursor.rowcount, connection.scalar(number)])
        with driver.pipeline():
            driver.execute("UPDATE pl_note SET number = number + 1 WHERE id = 1")
        seen.append(connection.exec_driver_sql("SELECT number FROM pl_note WHERE id = 1").scalar())

    session.get_one(Note, 1).number = 50
    session.save_changes()
    return seen


def by_the_driver_alone(session: Session) -> Any:
    """A listener that bypasses SQLAlchemy finds the flush's writes."""
    seen: list[Any] = []

    @event.listens_for(session, "after_flush")
    def read(session: Session, _: object) -> None:
        driver: Any = session.connection().connection.driver_connection
        seen.append(driver.execute("SELECT number FROM pl_note WHERE id = 1").fetchone())

    session.get_one(Note, 1).number = 50
    session.save_changes()
    return seen


def flushes_again(session: Session) -> Any:
    """A listener that changes more, which makes the same commit flush again."""

    @event.listens_for(session, "after_flush_postexec")
    def change(session: Session, _: object) -> None:
        note = session.get_one(Note, 2)
        if note.number < 5:
            note.number += 1

    session.get_one(Note, 1).number = 50
    session.commit()
    return session.get_one(Note, 2).number


def what_can_be_changed_later(session: Session) -> Any:
    """A list that is changed in place after its flush."""
    note = session.get_one(Note, 1)

    @event.listens_for(session, "after_flush")
    def change(*_: object) -> None:
        note.data.append("too late")

    note.data = ["flushed"]
    session.commit()
    return session.get_one(Note, 1).data


def commits_itself(session: Session) -> Any:
    """A transaction object in place of Session.commit()."""
    transaction = session.begin()
    session.get_one(Note, 1).text = "so"
    transaction.commit()
    return session.get_one(Note, 1).text


def in_bulk(session: Session) -> Any:
    """The bulk methods, and statements with many rows."""
    session.bulk_update_mappings(sa.inspect(Note), [{"id": n, "text": "bulk"} for n in (1, 2)])
    session.execute(sa.insert(Note), [{"id": n, "text": "many"} for n in (7, 8)])
    session.execute(sa.update(Note), [{"id": n, "number": 9} for n in (1, 7)])
    counted: Any = session.execute(sa.update(Note).where(Note.number == 9).values(text="nine"))
    session.save_changes()
    return counted.rowcount


PLAYS: dict[str, Play] = {
    play.__name__: play
    for play in (
        everything,
        in_steps,
        open_savepoint,
        reads_in_the_midst,
        by_the_driver_alone,
        flushes_again,
        what_can_be_changed_later,
        commits_itself,
        in_bulk,
    )
}


def rows(elsewhere: sa.Engine) -> dict[str, list[Any]]:
    with elsewhere.connect() as connection:
        return {
            table.name: [
                tuple(
                    value for name, value in row.items() if (table.name, name) != ("pl_item", "id")
                )
                for row in connection.execute(sa.select(table).order_by(table.c.id)).mappings()
            ]
            for table in Base.metadata.sorted_tables
        }


@pytest.mark.parametrize("name", PLAYS)
def test_the_same(
    bills: Database,
    make: Sessions,
    elsewhere: sa.Engine,
    start_over: Callable[[], None],
    name: str,
) -> None:
    if name == reads_in_the_midst.__name__:
        skip_server_cursor(bills.column)
    outcomes = []
    for pipeline in (False, True):
        start_over()
        session = make(pipeline=pipeline)
        reported = PLAYS[name](session)
        driver: Any = session.connection().connection.driver_connection
        assert driver.pgconn.pipeline_status == PipelineStatus.OFF
        assert driver.cursor_factory.__module__ == "psycopg"
        session.close()
        outcomes.append((reported, rows(elsewhere)))
    assert outcomes[0] == outcomes[1]
