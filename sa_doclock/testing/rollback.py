"""rollback_session(): a session for the fixture that rolls everything back after each test."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from ..core.transaction import level_of
from ..dialects import ROLLED_BACK_LATER, levels_for, strategy_for
from ..errors import WrongIsolation
from ..options import LockOptions
from ..session import LockingSession

_OWN: Final = frozenset({"bind", "binds", "join_transaction_mode", "twophase"})


def rollback_session(connection: Connection, **options: Any) -> LockingSession:
    """Return a session whose commits are rolled back when the connection is closed.

    It works in the transaction of this connection.  If there is none, it begins one at the
    isolation level that ForUpdate needs.  Each transaction of the session is a savepoint in it::

        with engine.connect() as connection, rollback_session(connection) as session:
            ...  # the test

    Several sessions of one connection see each other's commits.  If a function of the program needs
    a factory, pass ``partial(rollback_session, connection)``.  ``save_changes()``, ``on_commit()``,
    ``run_transaction()``, ``claim_each()`` and SnapshotRead work.  Only here can in-memory SQLite
    with one shared connection (``StaticPool``) be locked.

    Not promised: sessions of one connection do not exclude each other; the server holds their locks
    until the connection is closed; SnapshotRead is a plain read of this transaction; a deadlock on
    MySQL and MariaDB ends it.

    :param options: of :class:`LockingSession`, except those of the connection and its transaction.
    :raises TypeError: not a Connection; an option that is set here.
    :raises WrongIsolation: the connection is in a transaction that cannot protect a document.
    :raises LockNotSupported: the connection is in AUTOCOMMIT.
    """
    if not isinstance(connection, Connection):
        raise TypeError(f"rollback_session() needs a Connection, not {connection!r}")
    if not _OWN.isdisjoint(options):
        names = ", ".join(sorted(_OWN & options.keys()))
        raise TypeError(f"rollback_session() sets {names} itself")
    begins = not connection.in_transaction()
    strategy = strategy_for(connection)
    levels = levels_for(strategy.isolation, LockOptions.ForUpdate)
    level = level_of(connection)
    strategy.check_autocommit(connection)
    if levels and level not in levels:
        if not begins:
            raise WrongIsolation(
                f"the connection is in a transaction at {level}, in which a document cannot be "
                "locked; give rollback_session() a connection without a transaction"
            )
        connection.execution_options(isolation_level=levels[0])
    if not connection.in_transaction():
        connection.begin()
    # On SQLite, a savepoint without BEGIN would be a transaction of its own.
    strategy.lifecycle.before_savepoint(connection)
    connection.execution_options(**{ROLLED_BACK_LATER: True})
    return LockingSession(connection, join_transaction_mode="create_savepoint", **options)
