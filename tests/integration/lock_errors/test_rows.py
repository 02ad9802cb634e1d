"""Every row of docs/errors.md, on the database that it is about: tests/integration/lock_errors/rows.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError

from sa_doclock import DocLockError
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import LockStrategy
from tests.integration.lock_errors.rows import ROWS, Left, Next, Row, Where
from tests.integration.lock_errors.scene import (
    Scene,
    Session,
    attempt,
    look,
    rolls_back_to_savepoint,
)
from tests.integration.lock_errors.situations import SITUATIONS
from tests.support.actors import Actor
from tests.support.models import Voucher

Victim = Actor[Session]


def cases(database: str, column: str) -> pytest.MarkDecorator:
    """Run the test for each row of this column, each way to meet it, with a savepoint and without."""
    found = [
        pytest.param(row, where, savepoint, id=f"{row.number} {row.situation}, {where.value}{at}")
        for row in ROWS[database]
        if not row.columns or column in row.columns
        for where, savepoint, at in _ways(row)
    ]
    return pytest.mark.parametrize(("row", "where", "savepoint"), found)


def _ways(row: Row) -> Iterator[tuple[Where, bool, str]]:
    for where in row.where:
        yield where, False, ""
    # The server does not care what has failed; a COMMIT has no savepoints.
    if row.where[0] is not Where.COMMIT:
        yield row.where[0], True, ", in a savepoint"


@pytest.mark.databases("postgresql")
@cases("postgresql", "postgresql")
def test_postgresql(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("mysql")
@cases("mysql", "mysql")
def test_mysql(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("mariadb")
@cases("mariadb", "mariadb")
def test_mariadb(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@cases("sqlite", "sqlite")
def test_sqlite(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("sqlite-journal")
@cases("sqlite", "sqlite-journal")
def test_sqlite_journal(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


def check(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    """Make the error, and see what the row says of it."""
    victim, error, winner = SITUATIONS[row.situation](scene, where, savepoint)
    assert type(error) is row.error
    assert isinstance(error, DocLockError)
    assert error.retryable is row.do.retryable
    assert row.number in numbers_of(error, victim.does(strategy_of))
    assert_left(scene, victim, left_by(row, where), savepoint=savepoint)
    goes_on = where is Where.STATEMENT and row.left in (Left.REST, Left.SNAPSHOT)
    assert victim.does(refuses) is not goes_on
    if savepoint:
        met = victim.does(rolls_back_to_savepoint)
        assert type(met) is (type(None) if row.left.savepoint_helps else row.error)
        assert victim.does(refuses) is not row.left.savepoint_helps
        if row.left.savepoint_helps:
            assert_left(scene, victim, Next.SAME)
    if row.left is Left.SNAPSHOT and victim.does(refuses) is False:
        with pytest.raises(row.error):
            victim.does(attempt(Where.STATEMENT, 1))
    victim.does(lambda session: session.rollback())
    assert victim.does(refuses) is False
    assert_left(scene, victim, Next.NEW)
    if winner is not None:
        winner.result()


def left_by(row: Row, where: Where) -> Next:
    """Return the next statement's result; Session itself rolls back when a flush has failed."""
    return Next.NEW if where in (Where.FLUSH, Where.COMMIT) else row.left.next_statement


def assert_left(scene: Scene, victim: Victim, expected: Next, *, savepoint: bool = False) -> None:
    """Look whether the next statement sees what was written, and another what was locked."""
    info = victim.does(lambda session: session.info)
    found = victim.does(look)
    assert found is expected or found is None
    if info["own"] != "read":
        kept = expected is Next.SAME or (expected is Next.REFUSED and savepoint)
        assert scene.is_held(info["number"]) is kept
        assert kept or victim.does(lambda session: not session.held_locks)


def strategy_of(session: Session) -> LockStrategy:
    strategy = strategy_for(session.get_bind())
    assert strategy is not None
    return strategy


def refuses(session: Session) -> bool:
    """Return whether the session lets nothing more through."""
    try:
        session.scalars(sa.select(Voucher.total)).all()
    except InvalidRequestError:  # PendingRollbackError is one
        return True
    return False


def numbers_of(error: BaseException | None, strategy: LockStrategy) -> set[Any]:
    """The server's numbers: of the driver's errors that have led to this one."""
    found = set()
    while error is not None:
        found.add(strategy.errors.native_code(error))
        error = error.__context__
    return found
