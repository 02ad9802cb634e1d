"""Errors that look as if they were about a lock, and are SQLAlchemy's own."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import DocLockError
from tests.integration.lock_errors.rows import Where
from tests.integration.lock_errors.scene import Scene, attempt, begins, sets
from tests.integration.lock_errors.situations import STATEMENT_LIMIT
from tests.support.waits import wait_until_blocked

READ = sa.text("SELECT total FROM lk_order WHERE id = 1 FOR SHARE")
READ_ON_MARIADB = sa.text("SELECT total FROM lk_order WHERE id = 1 LOCK IN SHARE MODE")


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_limit_that_ends_a_statement_of_the_users(scene: Scene) -> None:
    scene.holder()
    victim = scene.victim()
    victim.does(begins(savepoint=False))
    victim.does(sets(STATEMENT_LIMIT[scene.database.name]))
    read = READ_ON_MARIADB if scene.database.name == "mariadb" else READ
    error = victim.starts(lambda session: session.execute(read)).exception()
    assert isinstance(error, DBAPIError)
    assert not isinstance(error, DocLockError)


@pytest.mark.databases("mysql", "mariadb")
def test_kill_query(scene: Scene) -> None:
    holder, victim = scene.holder(), scene.victim()
    queued = victim.starts(attempt(Where.LOCK, 1))
    wait_until_blocked(waiter=victim, holder=holder, step=queued)
    with scene.database.observer().connect() as connection:
        connection.exec_driver_sql(f"KILL QUERY {victim.connection_id()}")
    error = queued.exception()
    assert isinstance(error, DBAPIError)
    assert not isinstance(error, DocLockError)
    assert error.orig is not None
    assert error.orig.args[0] == 1317
