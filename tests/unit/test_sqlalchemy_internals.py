"""The private names of a Select that sqlalchemy_internals.py reads still mean the same.

Each name has a test that fails if it disappears or changes its meaning: ``_distinct``,
``_group_by_clauses``, ``_having_criteria``, ``_for_update_arg``, ``_limit_clause``,
``_fetch_clause``, ``_offset_clause``, ``_order_by_clauses``, ``_hints``, and ``_with_options``
(test_sqlalchemy_internals_options.py); and ``_select_names`` of an Insert.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, Select, event, func, insert, inspect, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session, selectinload

from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from sa_doclock.core.statements import refuse_unlockable_shape
from sa_doclock.dml_internals import select_of_insert
from sa_doclock.sqlalchemy_internals import (
    ForUpdate,
    closes_connection,
    commits_savepoint,
    connects_by_url,
    deleted_states,
    ends_on_return,
    for_update_of,
    guard_finalizers,
    has_limit,
    has_offset,
    hint_of,
    hints_of,
    innermost,
    is_distinct,
    is_flushing,
    is_grouped,
    largest_size,
    modified_states,
    new_states,
    only_columns,
    order_of,
    raise_as_statement,
    savepoint_on,
    savepoints_of,
    with_last_hint,
    without_lock,
)
from tests.sql.servers import serving
from tests.support.models import Line, Order


def _distinct_on(statement: Select[Any], column: Any) -> Select[Any]:
    if hasattr(postgresql, "distinct_on"):  # SQLAlchemy 2.1
        return statement.ext(postgresql.distinct_on(column))
    return statement.distinct(column)


PLAIN = select(Order).where(Order.total > 5).order_by(Order.id)
DIALECT = postgresql.base.PGDialect()  # type: ignore[no-untyped-call]
UNLOCKABLE: dict[str, tuple[Select[Any], str]] = {
    "distinct": (PLAIN.distinct(), "DISTINCT"),
    "distinct on": (_distinct_on(PLAIN, Order.total), "DISTINCT"),
    "group by": (PLAIN.group_by(Order.id), "GROUP BY"),
    "having": (PLAIN.having(func.count(Order.id) > 1), "GROUP BY"),
}
LOCKABLE: dict[str, Select[Any]] = {
    "plain": PLAIN,
    "limit": PLAIN.limit(1).offset(1),
    "join": PLAIN.join(Order.lines),
    "distinct in a subquery": PLAIN.where(Order.id.in_(select(Line.order_id).distinct())),
    "group by in a subquery": PLAIN.where(
        Order.id.in_(select(Line.order_id).group_by(Line.order_id).having(func.count() > 1))
    ),
}


def _text(statement: Any) -> str:
    return " ".join(str(statement.compile(dialect=DIALECT)).split())


@pytest.mark.parametrize(("statement", "word"), UNLOCKABLE.values(), ids=UNLOCKABLE)
def test_a_row_that_is_made_of_several_is_refused(statement: Select[Any], word: str) -> None:
    with pytest.raises(LockNotSupported, match=word):
        refuse_unlockable_shape(statement)


@pytest.mark.parametrize("statement", LOCKABLE.values(), ids=LOCKABLE)
def test_a_row_of_the_table_is_not(statement: Select[Any]) -> None:
    refuse_unlockable_shape(statement)


def test_distinct_and_group_by_are_seen() -> None:
    seen = {name: (is_distinct(one), is_grouped(one)) for name, (one, _) in UNLOCKABLE.items()}
    assert seen == {
        "distinct": (True, False),
        "distinct on": (True, False),
        "group by": (False, True),
        "having": (False, True),
    }
    assert {(is_distinct(one), is_grouped(one)) for one in LOCKABLE.values()} == {(False, False)}


def test_order_by_is_seen() -> None:
    assert order_of(PLAIN) == (Order.__table__.c.id,)
    assert order_of(PLAIN.order_by(Order.total)) == (Order.__table__.c.id, Order.__table__.c.total)
    assert order_of(PLAIN.order_by(None)) == ()


def test_the_arguments_of_with_for_update_are_seen() -> None:
    table = id(Order.__table__)
    assert for_update_of(PLAIN) is None
    assert for_update_of(PLAIN.with_for_update()) == ForUpdate((), False, False, False)
    assert for_update_of(
        PLAIN.with_for_update(of=Order.__table__, read=True, skip_locked=True, key_share=True)
    ) == ForUpdate((table,), read=True, nowait=False, skip_locked=True, key_share=True)
    nowait = for_update_of(PLAIN.with_for_update(nowait=True))
    assert nowait is not None
    assert nowait.nowait


def test_the_last_hint_of_a_table_is_seen_and_set() -> None:
    hinted = PLAIN.with_hint(Order, "ONE", "mssql").with_hint(Order, "TWO")
    table = Order.__table__
    assert hint_of(PLAIN, table, "mssql") is None
    assert hint_of(hinted, table, "mssql") == "TWO"
    assert hint_of(hinted, table, "mysql") == "TWO"
    assert hint_of(with_last_hint(hinted, table, "OURS", "mssql"), table, "mssql") == "OURS"
    assert hint_of(with_last_hint(hinted, table, "OURS", "mssql"), table, "mysql") == "TWO"


def test_the_hints_of_all_tables_are_seen() -> None:
    assert hints_of(PLAIN) == frozenset()
    hinted = PLAIN.join(Order.lines).with_hint(Order, "ONE", "mssql").with_hint(Line, "TWO")
    assert hints_of(hinted) == {("mssql", "ONE"), ("*", "TWO")}


def test_the_names_and_the_select_of_an_insert_are_seen() -> None:
    copied = select(Line.id + 10, Line.order_id)
    names, found = select_of_insert(insert(Line).from_select(["id", Line.order_id], copied))
    assert [*names] == ["id", "order_id"]
    assert found is not None
    assert found.compare(copied)
    assert select_of_insert(insert(Line)) == ((), None)


def test_a_flush_is_seen(session: LockingSession) -> None:
    seen: list[bool] = []
    event.listen(session, "before_flush", lambda one, *_: seen.append(is_flushing(one)))
    assert not is_flushing(session)
    session.add(Order(id=90, total=0))
    session.flush()
    assert seen == [True]
    assert not is_flushing(session)


@pytest.mark.parametrize(
    ("limited", "limit", "offset"),
    [
        (PLAIN, False, False),
        (PLAIN.limit(1), True, False),
        (PLAIN.fetch(1), True, False),
        (PLAIN.offset(1), False, True),
        (PLAIN.limit(1).offset(1), True, True),
        (PLAIN.limit(1).limit(None), False, False),
        (PLAIN.where(Order.id.in_(select(Line.order_id).limit(1).offset(1))), False, False),
    ],
    ids=lambda value: _text(value)[-40:] if isinstance(value, Select) else None,
)
def test_limit_and_offset_are_seen(limited: Select[Any], limit: bool, offset: bool) -> None:
    assert (has_limit(limited), has_offset(limited)) == (limit, offset)


def test_without_its_lock_it_is_the_plain_statement_and_the_original_stays() -> None:
    locked = PLAIN.with_for_update(of=Order)
    plain = without_lock(locked)
    assert _text(plain) == _text(PLAIN)
    assert _text(locked).endswith("FOR UPDATE OF lk_order")
    assert plain.compare(PLAIN)
    assert not plain.compare(locked)


@pytest.mark.parametrize(
    "change", [without_lock, lambda s: only_columns(s, [Order.id])], ids=["lock", "columns"]
)
def test_a_changed_copy_is_not_taken_for_its_original_by_the_statement_cache(
    change: Callable[[Select[Any]], Select[Any]],
) -> None:
    locked = PLAIN.with_for_update().options(selectinload(Order.lines))
    with serving("postgresql") as (engine, script), engine.connect() as connection:
        for _ in range(2):  # compiled, then from the cache
            connection.execute(locked)
            connection.execute(change(locked))
    one, other, one_again, other_again = script.selects
    assert (one, other) == (one_again, other_again)
    assert one != other
    assert ("FOR UPDATE" in other) is (change is not without_lock)


def test_only_the_columns_are_read_but_everything_else_stays() -> None:
    locked = PLAIN.join(Order.lines).limit(1).with_for_update(of=Order)
    narrow = only_columns(locked.options(selectinload(Order.lines)), [Order.id])
    assert _text(narrow) == _text(locked).replace(
        "SELECT lk_order.id, lk_order.total FROM", "SELECT lk_order.id FROM"
    )


def test_a_lock_of_the_users_own_is_not_silently_replaced() -> None:
    with pytest.raises(Exception, match=r"already has a with_for_update\(\)"):
        with_lock(PLAIN.with_for_update(), LockOptions.ForUpdate)


# --------------------------------------------------------------------------------------------------
# The private names of sessions and pools: each test fails if SQLAlchemy drops one.


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
        assert savepoint_on(session, connection) is None  # set on first use
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
        assert commits == [False, True, True]  # False for the whole transaction, first
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
    """Replaces Ctrl-C, which would interrupt pytest itself."""


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
    """The order of loading/loaded.py uses public names, but SQLAlchemy does not promise it."""
    with Session(engine) as session:
        kept = [session.get_one(Line, number) for number in (2, 1, 3)]
        keys = list(session.identity_map.keys())
        assert keys == [inspect(line).key for line in kept]
        assert keys[0] is inspect(kept[0]).key
        session.expunge(kept[0])
        session.add(kept[0])
        assert list(session.identity_map.keys())[-1] is inspect(kept[0]).key
