"""An UPDATE that does not find its row: StaleDataError, and nothing is committed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import LockingSession
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import Bill, Item, Note
from tests.integration.pipeline.only import ON_POSTGRESQL

pytestmark = ON_POSTGRESQL

Session = LockingSession


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
    """Change bill 1, which somebody has changed since it was read, and a note with it."""
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
