"""Opens a session's transaction so that it suits a lock.

The isolation level of a lock is set before its transaction starts.  Afterwards SQLAlchemy only
warns, and the server continues to read as before.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session
from sqlalchemy.util import immutabledict

from ...dialects import check_open, is_rolled_back_later, wrapped_error
from ...dialects.base import AUTOCOMMIT
from ...errors import LockNotSupported, WrongIsolation
from ...options import LockOptions, base_of
from ...pool import GUARD_ISOLATION_LEVEL, on_return
from .context import LockContext
from .plan import LockPlan
from .transaction_connection import ISOLATION, TransactionConnection, TransactionConnections


class _OpeningLevel(NamedTuple):
    """The isolation level of a transaction that a lock opens.

    :ivar before: the level without the lock.
    :ivar option: the level that SQLAlchemy sets on the connection, or None.
    :ivar once: the level that the dialect sets for this transaction only, or None.
    """

    before: str | None
    option: str | None = None
    once: str | None = None


def _opening_level(session: Session, bind: Engine | Connection, plan: LockPlan) -> _OpeningLevel:
    """Return the transaction's level; if the current one protects a document, none is set.

    :raises LockNotSupported: AUTOCOMMIT, which releases every lock at the end of its statement.
    """
    # Session(execution_options=...) exists since SQLAlchemy 2.1
    of_session = getattr(session, "execution_options", {}).get(ISOLATION)
    chosen = of_session or bind.get_execution_options().get(ISOLATION)
    default: str | None = getattr(bind.dialect, "default_isolation_level", None)
    level, strategy = str(chosen) if chosen else default, plan.strategy
    if level == "AUTOCOMMIT" or (AUTOCOMMIT in strategy.findings and not chosen):
        raise LockNotSupported(AUTOCOMMIT)
    if level in plan.fits:
        return _OpeningLevel(level)
    if plan.sets_level and not session.twophase:  # XA START begins at once
        return _OpeningLevel(level, once=plan.level)
    return _OpeningLevel(level, plan.level)


def open_for_lock(
    context: LockContext, bind: Engine | Connection, plan: LockPlan, seconds: float | None
) -> TransactionConnection:
    """Return the connection for this lock, with its transaction opened for it or suitable.

    :param bind: the result of ``get_bind()``; a custom one may return another database next time.
    :raises WrongIsolation: the transaction is open already, at an unsuitable level.
    :raises LockNotSupported: AUTOCOMMIT.
    """
    session, strategy, connections = context.session(), plan.strategy, context.connections
    known = connections.by_engine.get(bind.engine)
    if (
        known is not None
        and known.fit_for == (plan, seconds)
        and known.foreign_asked == connections.foreign_statements
        and not session.in_nested_transaction()
    ):
        strategy.check_autocommit(known.connection)  # any other change needs a statement
        return known
    if known is not None or (isinstance(bind, Connection) and bind.in_transaction()):
        return _join(context, known, bind, plan, seconds)
    nested = session.in_nested_transaction()
    level = _opening_level(session, bind, plan)
    opened = _begin(context, session, bind, level, nested=nested)
    strategy.check_autocommit(opened.connection)
    if level.once is not None:
        strategy.isolation.set_once(opened.connection, level.once)
    opened.begun = False  # a BEGIN before a savepoint may be taken back
    strategy.begin(opened.connection, plan.lock, seconds)
    opened.opened_for, opened.fit_for = plan.lock, (plan, seconds)
    if plan.lock is LockOptions.SnapshotRead:
        connections.reads_snapshot = True
    if nested:
        Session.connection(session, {"bind": bind})  # sends the SAVEPOINT
    return opened


def _begin(
    context: LockContext,
    session: Session,
    bind: Engine | Connection,
    level: _OpeningLevel,
    *,
    nested: bool,
) -> TransactionConnection:
    """Connect, and begin the session's transaction on this connection at this level."""
    started = time.monotonic()
    options = None if level.option is None else immutabledict({ISOLATION: level.option})
    try:
        if nested:  # the first statement must come before the SAVEPOINT
            root = session.get_transaction()
            assert root is not None
            root.connection(None, execution_options=options, bind=bind)
        else:
            Session.connection(session, {"bind": bind}, options)
    except Exception as error:
        driver_error: Any = bind.dialect.loaded_dbapi.Error
        if isinstance(error, driver_error):
            # SQLAlchemy does not wrap one error: setting the level on a connection that died in the
            # pool.
            raise wrapped_error(error, bind.dialect, f"SET {ISOLATION}") from error
        raise
    context.calls.connecting += time.monotonic() - started
    opened = context.connections.by_engine[bind.engine]
    opened.level = level.option or level.once or level.before
    if level.option is not None:
        on_return(opened.connection, GUARD_ISOLATION_LEVEL)
        opened.level_before = level.before if isinstance(bind, Connection) else None
    return opened


def _join(
    context: LockContext,
    known: TransactionConnection | None,
    bind: Engine | Connection,
    plan: LockPlan,
    seconds: float | None,
) -> TransactionConnection:
    session, strategy = context.session(), plan.strategy
    if known is None:
        assert isinstance(bind, Connection)
        strategy.lifecycle.before_savepoint(bind)  # the session may join by a savepoint
    if known is None or session.in_nested_transaction():
        # Joins the lent connection's transaction; sends a pending SAVEPOINT before other
        # statements.
        Session.connection(session, {"bind": bind})
    connections = context.connections
    joined = connections.by_engine[bind.engine]
    if joined.level is None or connections.is_level_in_doubt(joined):
        joined = _note_joined(connections, joined, plan)
    strategy.check_autocommit(joined.connection)
    begins = known is None and is_rolled_back_later(joined.connection)
    if _take_in_open(joined, plan, seconds, begins=begins):
        joined.opened_for = plan.lock
        if plan.lock is LockOptions.SnapshotRead:
            connections.reads_snapshot = True
    if not session.in_nested_transaction():
        joined.fit_for = plan, seconds
    return joined


def _note_joined(
    connections: TransactionConnections, joined: TransactionConnection, plan: LockPlan
) -> TransactionConnection:
    """Determine the isolation level of the connection's open transaction.

    If a foreign statement ended it, and the server has begun no other, set the next one's level as
    at its begin.
    """
    sets = plan.sets_level and connections.is_level_in_doubt(joined)
    if sets and plan.level is not None and _sets_next_level(joined, plan.level):
        connections.note_ended(joined.connection)
        joined = connections.by_engine[joined.connection.engine]
        connections.note_level(joined, plan.level)
    connections.note_joined(joined, plan.strategy)
    return joined


def _sets_next_level(joined: TransactionConnection, level: str) -> bool:
    """Set the level of the next transaction; return whether the server had no open one.

    If the driver does not report this, try: the server refuses in an open transaction.
    """
    is_idle = joined.is_idle()
    if is_idle is False:
        return False
    try:
        joined.strategy.isolation.set_once(joined.connection, level)
    except WrongIsolation:
        if is_idle:
            raise
        return False
    return True


def _take_in_open(
    joined: TransactionConnection, plan: LockPlan, seconds: float | None, *, begins: bool
) -> bool:
    """Take the lock in the open transaction; return whether it counts as opened for this lock.

    :param begins: it is a test's transaction, in which one of the session begins.
    """
    if begins and plan.lock is LockOptions.SnapshotRead:
        # A test reads at the current level.
        joined.note_level(plan.level, joined.foreign_asked)
        return True
    bases = base_of(joined.opened_for or LockOptions.None_), base_of(plan.lock)
    upgraded = plan.upgrades and bases == (LockOptions.SharedRead, LockOptions.ForUpdate)
    opened_for = None if upgraded else joined.opened_for  # None: as after any other read
    strategy, connection = plan.strategy, joined.connection
    if plan.sets_level and strategy.status.in_transaction(connection) is False:
        strategy.begin(connection, plan.lock, seconds)  # the driver begins with the first statement
        return True
    check_open(strategy.isolation, plan.lock, joined.level, opened_for)
    strategy.join(connection, plan.lock, seconds, opened_for, plan.table)
    return begins or upgraded
