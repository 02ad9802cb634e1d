"""guard="raise", "warn" and "off"."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, UnlockedWrite, UnlockedWriteWarning
from sa_doclock.errors import PAGE
from tests.integration.guard.models import Line, Order, Tax
from tests.integration.guard.steps import hold

pytestmark = pytest.mark.quick

MakeSession = Callable[..., LockingSession]
Stored = Callable[[Any, Any], Any]


def line_number_of(function: Callable[..., Any], offset: int) -> int:
    """Return the line so many below the ``def`` of a function."""
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
        for ident in (1, 3, 1):  # of two orders
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
    with pytest.raises(UnlockedWriteWarning, match="Line rows"):  # as pytest makes them all
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
