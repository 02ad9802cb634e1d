"""A session in a forked process: its transaction belongs to the parent, which continues to use the connection.

A transaction belongs to the process that began it.  In a child, the session sends nothing, and
drops its connection without a byte on the wire.  A driver's own ``close()`` writes to the socket
that the parent still uses: libpq sends Terminate, and a connection pool sends ROLLBACK before that.
So the child never closes such a connection, and points its copy of the descriptor at the null
device.

An idle connection that the parent left in a pool is shared as well: a lock on it would be granted
to both processes.  The child replaces it by a new one before its first use.

``os.register_at_fork()`` finds the sessions, so a program that does not fork pays nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from threading import get_ident
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from ...dialects import product_of, strategy_classes
from ...dialects.base import LockStrategy, TransactionLifecycle
from ...errors import LockMisuse
from ...events import EventfulSession
from ...sqlalchemy_internals import all_sessions
from ..ledger import Ledger, document_of
from ..lock_request import add_document
from .transaction_connection import TransactionConnections

_REFUSED: Final = ("before_cursor_execute", "prepare_twophase", "commit_twophase")
_DROPPED: Final = ("rollback", "rollback_savepoint", "rollback_twophase")


class ParentTransaction:
    """The transaction of a session that another process began, as seen in a fork of that process.

    :param process: the id of the process that began it.
    :param ledger: its locks.
    :ivar left: its connections that the session has not dropped yet.
    """

    def __init__(
        self, process: int, ledger: Ledger, connections: TransactionConnections, session: Session
    ) -> None:
        self.process, self._database = process, ""
        self._held = ledger.first() if ledger.places else None
        self._others = len(ledger.places) - 1
        self.left: list[_LeftConnection] = []
        for part in connections.by_engine.values():
            self._database = self._database or product_of(part.connection.dialect)
            if not (part.connection.closed or part.connection.invalidated):
                lent = connections.is_lent(part.connection)
                self.left.append(_LeftConnection(self, part.connection, part.known, lent=lent))
        # Every statement first asks for its database.
        self._get_bind = vars(session).get("get_bind")
        vars(session)["get_bind"] = self.refuse

    def refuse(self, *_: Any, **__: Any) -> Any:
        """:raises LockMisuse: always."""
        others = f" and {self._others} more" if self._others > 0 else ""
        holds = f", and holds this lock{others}" if self._held else ""
        error = LockMisuse(
            f"the session's transaction belongs to process {self.process}, which began it{holds}; "
            f"this is process {os.getpid()}, a fork of it, and nothing was sent. Call rollback() or "
            "close() here, which drops the connection and sends nothing. Then begin a "
            "transaction of this process, after engine.dispose(close=False)"
        )
        if self._held is not None:
            place, lock = self._held
            add_document(error, *document_of(place), lock, self._database)
        raise error

    def end(self, session: Session) -> None:
        """Let the session begin a transaction of this process."""
        if self._get_bind is None:
            vars(session).pop("get_bind", None)
        else:
            vars(session)["get_bind"] = self._get_bind

    def drop(self) -> None:
        """Drop the session's own connections; the lender must roll back a lent one."""
        for left in [left for left in self.left if not left.lent]:
            left.drop()


class _LeftConnection:
    """A connection that belongs to the parent process after a fork.

    Nothing closes it here, neither the garbage collector nor the end of the interpreter.

    :param known: its lock strategy, or None for an unknown database.
    :ivar lent: its owner ends it.
    """

    def __init__(
        self,
        parent: ParentTransaction,
        connection: Connection,
        known: LockStrategy | None,
        *,
        lent: bool,
    ) -> None:
        self._parent, self._connection, self.lent = parent, connection, lent
        lifecycle = TransactionLifecycle() if known is None else known.lifecycle
        self._why_closed = lifecycle.closed_to_forks(connection)
        if self._why_closed is not None:
            event.listen(Engine, "engine_connect", self._refuse_engine)
        _keep_for_ever(connection.connection)
        _silence(connection, lifecycle)
        # First, before other listeners send something.
        for name in _REFUSED:
            event.listen(connection, name, self._refuse, insert=True)
        for name in _DROPPED:
            event.listen(connection, name, self.drop, insert=True)
        event.listen(connection, "commit", self._on_commit, insert=True)

    def drop(self, *_: Any) -> None:
        """Invalidate the connection as if it were lost, without closing it."""
        if self in self._parent.left:
            self._parent.left.remove(self)
            if not (self._connection.closed or self._connection.invalidated):
                _drop(self._connection)

    def _refuse_engine(self, connection: Connection) -> None:
        why = None if self._why_closed is None else self._why_closed(connection.engine)
        if why is not None:
            raise LockMisuse(
                f"process {self._parent.process} held a lock on this database when it forked process "
                f"{os.getpid()}: {why}. Fork while no session holds a lock, or start the process by "
                '"spawn"'
            )

    def _refuse(self, *_: Any) -> None:
        if self in self._parent.left:
            self._parent.refuse()

    def _on_commit(self, *_: Any) -> None:
        if self in self._parent.left:
            self.drop()  # SQLAlchemy believes that a failed COMMIT ended the transaction
            self._parent.refuse()


# Threads: filled only in the child of a fork, which has one thread.
_kept: Final[list[Any]] = []


def _keep_for_ever(thing: Any) -> None:
    """Keep the object until the process ends, even while the interpreter shuts down."""
    _kept.append(thing)
    with suppress(ImportError, AttributeError):  # not CPython, which alone finalizes at its end
        import ctypes  # noqa: PLC0415  # needed in a fork alone

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _silence(connection: Connection, lifecycle: TransactionLifecycle) -> None:
    """Keep the driver's connection, with its descriptor pointed at the null device.

    Only this process's copy of the descriptor; the parent keeps its own.
    """
    _keep_for_ever(connection.connection.dbapi_connection)
    with suppress(Exception):  # the driver has closed it, or has none
        descriptor = lifecycle.descriptor(connection.connection.driver_connection)
        if descriptor is not None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)


def _drop(connection: Connection) -> None:
    connection.detach()  # the pool must not close it
    connection.invalidate()


# In Connection.info, which SQLAlchemy clears when the server connection closes.
_OPENED_BY: Final = "sa_doclock.opened_by"


def _note_process(_driver: Any, entry: ConnectionPoolEntry) -> None:
    entry.info[_OPENED_BY] = os.getpid()


def _lifecycle_if_inherited(connection: Connection) -> TransactionLifecycle | None:
    """Return its lifecycle if another process opened the connection to its server, else None."""
    strategy = strategy_classes().get(product_of(connection.dialect))
    if strategy is None or connection.info.get(_OPENED_BY) == os.getpid():
        return None
    with suppress(Exception):  # the driver has closed it
        if strategy.lifecycle.descriptor(connection.connection.driver_connection) is None:
            return None  # no server, or the driver hides it
    return strategy.lifecycle


def _replace_inherited(connection: Connection) -> None:
    while (lifecycle := _lifecycle_if_inherited(connection)) is not None:
        _silence(connection, lifecycle)
        _drop(connection)  # its next use takes another one from the pool


def _refuse_inherited(session: Session, _transaction: Any, connection: Connection) -> None:
    if not isinstance(session, EventfulSession):
        return
    lifecycle = _lifecycle_if_inherited(connection)
    if lifecycle is not None:
        _silence(connection, lifecycle)
        _drop(connection)
        raise LockMisuse(
            f"another process opened this Connection; process {os.getpid()} is a fork of it, and has "
            "dropped it. Open a Connection of this process by engine.connect()"
        )


# Threads: each has its own entry while it forks.
# While a thread forks: its sessions, and those of all other threads.  In the child, Python frees
# thread-local objects before it calls any function there, and a pool would send ROLLBACK for them.
_forking: Final[dict[int, tuple[int, Sequence[Session]]]] = {}


def _before() -> None:
    sessions = [session for session in all_sessions() if _transaction_of(session) is not None]
    if sessions:
        _forking[get_ident()] = os.getpid(), sessions


def _in_child() -> None:
    # A server that forks in C, such as uWSGI, calls only this function.
    process, sessions = _forking.get(get_ident()) or (os.getppid(), all_sessions())
    if not event.contains(Pool, "connect", _note_process):
        event.listen(Pool, "connect", _note_process)
        event.listen(Engine, "engine_connect", _replace_inherited, insert=True)
        event.listen(Session, "after_begin", _refuse_inherited, insert=True)
    with ExitStack() as stack:  # run all of them, even if some fail
        stack.callback(_forking.clear)
        for session in sessions:
            transaction = _transaction_of(session)
            if transaction is not None:
                stack.callback(transaction.leave_to_parent, process)


def _transaction_of(session: Session) -> Any:
    context = vars(session).get("_context") if isinstance(session, EventfulSession) else None
    return context.transaction if context is not None and context.connections.by_engine else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _forking.pop(get_ident(), None),
        after_in_child=_in_child,
    )
