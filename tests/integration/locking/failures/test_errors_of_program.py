"""An error of the program's own in a statement: it comes out, and no lock is lost with it.

A text that the database's character set does not have is such an error, which a driver meets before
it sends anything.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from tests.integration.questions.conftest import run_on, url_of
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.rows import rows

ForUpdate = LockOptions.ForUpdate


def goes_on(session: LockingSession) -> bool:
    """Return whether the session holds its lock, on a connection that answers."""
    return (Order, (1,)) in session.held_locks and session.scalar(sa.text("SELECT 42")) == 42


@pytest.mark.databases("mysql", "mariadb")
@rows("charset", ["latin1", "cp1250", "greek"])
def test_a_text_that_cannot_be_encoded(documents: Database, charset: str) -> None:
    """The codecs of these are in Python, and not in C."""

    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session:
            session.get_one_entity(Order, 1, ForUpdate)
            with pytest.raises(UnicodeEncodeError):
                session.scalar(sa.text("SELECT :text"), {"text": "一"})
            assert goes_on(session)

    given = sa.make_url(documents.url).update_query_dict({"charset": charset})
    run_on(url_of(documents, "pymysql", given), play)


@pytest.mark.databases("mysql", "mariadb")
@rows("name", ["before_cursor_execute", "after_cursor_execute"])
@rows("number", [1053, 2006, 2027])
def test_a_key_error_with_the_number_of_a_lost_connection(
    engine: sa.Engine, name: str, number: int
) -> None:
    """The numbers of a driver's errors are the server's; those of others are anything."""

    def look_up(*args: Any) -> None:
        if "4711" in args[2]:
            raise KeyError(number)

    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        event.listen(session.connection(), name, look_up)
        with pytest.raises(KeyError):
            session.scalar(sa.text("SELECT 4711"))
        assert goes_on(session)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_listener_that_has_invalidated_the_connection(engine: sa.Engine) -> None:
    class MistakeError(Exception):
        pass

    def give_up(connection: sa.Connection, _: Any, statement: str, *__: Any) -> None:
        if "4711" in statement:
            connection.invalidate()
            raise MistakeError

    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        event.listen(session.connection(), "before_cursor_execute", give_up)
        with pytest.raises(MistakeError):
            session.scalar(sa.text("SELECT 4711"))
        assert not session.held_locks
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate)
        session.rollback()
