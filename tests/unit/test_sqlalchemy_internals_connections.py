"""The private names of sessions and pools: each test fails when SQLAlchemy has the name no more."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, inspect
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from sa_doclock.sqlalchemy_internals import (
    closes_connection,
    commits_savepoint,
    connects_by_url,
    deleted_states,
    ends_on_return,
    guard_finalizers,
    innermost,
    largest_size,
    modified_states,
    new_states,
    raise_as_statement,
    savepoint_on,
    savepoints_of,
)
from tests.support.models import Line


def test_a_session_closes_what_it_has_taken_from_the_pool(engine: Engine) -> None:
    with Session(engine) as session, session.begin() as transaction:
        assert closes_connection(transaction, session.connection())
        nested = session.begin_nested()
        assert closes_connection(nested, session.connection())


def test_and_not_what_it_was_lent(engine: Engine) -> None:
    with engine.connect() as lent, Session(lent) as session, session.begin() as transaction:
        assert not closes_connection(transaction, session.connection())
        nested = session.begin_nested()
        assert not closes_connection(nested, session.connection())


def test_nor_a_connection_of_another(engine: Engine) -> None:
    with Session(engine) as session, session.begin() as transaction, engine.connect() as other:
        session.connection()
        assert not closes_connection(transaction, other)


def test_savepoints_and_whether_they_are_rolled_back(engine: Engine) -> None:
    with Session(engine) as session:
        assert savepoints_of(session) == {}
        outer, inner = session.begin_nested(), session.begin_nested()
        assert list(savepoints_of(session).items()) == [(inner, False), (outer, False)]
        session.add(Line(id=1))
        with pytest.raises(sa.exc.DBAPIError):
            session.flush()  # there is no table
        assert savepoints_of(session) == {inner: True, outer: False}
        inner.rollback()
        assert savepoints_of(session) == {outer: False}


def test_the_savepoints_that_are_set_on_a_connection(engine: Engine) -> None:
    with Session(engine) as session:
        connection = session.connection()
        outer = session.begin_nested()
        assert savepoint_on(session, connection) is None  # it is set at its first use
        session.connection()
        session.begin_nested()
        assert savepoint_on(session, connection) is outer
        assert savepoint_on(session, connection, "sa_savepoint_1") is outer
        assert savepoint_on(session, connection, "sa_savepoint_2") is None


def test_whether_a_savepoint_is_committed_or_the_whole_with_it() -> None:
    with Session() as session:
        commits: list[bool] = []
        sa.event.listen(
            session, "before_commit", lambda one: commits.append(commits_savepoint(one))
        )
        committed: list[Any] = []
        sa.event.listen(session, "after_commit", lambda one: committed.append(innermost(one)))
        with session.begin() as whole:
            outer, inner = session.begin_nested(), session.begin_nested()
        assert commits == [False, True, True]  # of the whole first
        assert committed == [inner, outer, whole]
        del commits[:]
        with session.begin():
            session.begin_nested()
            session.begin_nested().commit()
            session.commit()
        assert commits == [True, True, False]
        session.commit()
        assert commits == [True, True, False, False]


class Interrupted(BaseException):
    """Stands for Ctrl-C, which pytest would take for its own."""


@pytest.mark.parametrize("error", [OSError, Interrupted])
def test_a_level_that_cannot_be_set_back_closes_the_connection(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(_connection: object) -> None:
        raise error

    pool = engine.pool
    with monkeypatch.context() as patched:
        patched.setattr(engine.dialect, "reset_isolation_level", fail)
        connection = engine.connect().execution_options(isolation_level="READ UNCOMMITTED")
        driver = connection.connection.driver_connection
        guard_finalizers(connection.connection._connection_record)
        if error is Interrupted:
            with pytest.raises(Interrupted):
                connection.close()
        else:
            connection.close()
    assert pool.status().endswith("Current Checked out connections: 0")
    with engine.connect() as another:
        assert another.connection.driver_connection is not driver


def test_a_level_that_can_be_set_back_keeps_the_connection(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="READ UNCOMMITTED") as connection:
        driver = connection.connection.driver_connection
        guard_finalizers(connection.connection._connection_record)
    with engine.connect() as another:
        assert another.connection.driver_connection is driver
        assert another.exec_driver_sql("PRAGMA read_uncommitted").scalar() == 0


@pytest.mark.parametrize(
    ("options", "rolls_back"),
    [
        ({}, True),
        ({"pool_reset_on_return": "commit"}, True),
        ({"pool_reset_on_return": None}, False),
    ],
)
def test_a_pool_that_ends_no_transaction(options: dict[str, Any], rolls_back: bool) -> None:
    pool = sa.create_engine("sqlite://", poolclass=sa.QueuePool, **options).pool
    assert ends_on_return(pool) is rolls_back


@pytest.mark.parametrize(
    ("options", "by_url"),
    [({}, True), ({"creator": lambda: sqlite3.connect(":memory:")}, False)],
    ids=["of the URL", "of the program"],
)
def test_who_makes_the_connections_of_a_pool(options: dict[str, Any], by_url: bool) -> None:
    pool = sa.create_engine("sqlite://", poolclass=sa.QueuePool, **options).pool
    assert connects_by_url(pool) is by_url
    assert connects_by_url(pool.recreate()) is by_url


def test_an_error_past_sqlalchemy_is_handled_as_one_of_its_statements(engine: Engine) -> None:
    handled: list[Any] = []
    sa.event.listen(engine, "handle_error", lambda context: handled.append(context.statement))
    with engine.connect() as connection:
        error = DBAPIError("SELECT 1", None, sqlite3.OperationalError("lost"))
        with pytest.raises(OperationalError, match="lost"):
            raise_as_statement(connection, error)
        with pytest.raises(OperationalError, match="no such table") as raised:
            connection.exec_driver_sql("SELECT * FROM absent")
        with pytest.raises(OperationalError) as again:
            raise_as_statement(connection, raised.value)
    assert again.value is raised.value
    assert handled == ["SELECT 1", "SELECT * FROM absent"]


@pytest.mark.parametrize(
    ("size", "overflow", "largest"), [(5, 10, 15), (5, 0, 5), (5, -1, None), (0, 0, None)]
)
def test_the_size_of_a_pool(size: int, overflow: int, largest: int | None) -> None:
    pool = sa.create_engine(
        "sqlite://", poolclass=sa.QueuePool, pool_size=size, max_overflow=overflow
    ).pool
    assert isinstance(pool, sa.QueuePool)
    assert largest_size(pool) == largest


def test_the_pending_objects_of_a_session(engine: Engine) -> None:
    with Session(engine) as session:
        changed, gone, added = session.get_one(Line, 1), session.get_one(Line, 2), Line(id=9)
        changed.value += 1
        session.delete(gone)
        session.add(added)
        assert set(modified_states(session)) == {inspect(changed)}
        assert set(deleted_states(session)) == {inspect(gone)}
        assert set(new_states(session)) == {inspect(added)}


def test_the_newest_entry_stands_at_the_end_of_the_identity_map(engine: Engine) -> None:
    """The order of loading/loaded.py: public names, but no promise of SQLAlchemy's."""
    with Session(engine) as session:
        kept = [session.get_one(Line, number) for number in (2, 1, 3)]
        keys = list(session.identity_map.keys())
        assert keys == [inspect(line).key for line in kept]
        assert keys[0] is inspect(kept[0]).key
        session.expunge(kept[0])
        session.add(kept[0])
        assert list(session.identity_map.keys())[-1] is inspect(kept[0]).key
