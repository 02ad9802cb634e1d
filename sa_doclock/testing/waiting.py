"""wait_until_blocked(): the server says that one session waits for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from ..dialects import product_of, side_connection, strategy_for
from ..errors import LockNotSupported
from ..options import LockOptions
from ..session import LockingSession, context_of
from .concurrent import LoopThread
from .schedule import FIRST_LOOK, NEXT_LOOK
from .server_waits import ServerWaits, blocked_by, connection_id, locks_database, monitoring_of

_AT_ONCE: Final = LockOptions.ForUpdate | LockOptions.NoWait


def wait_until_blocked(
    waiter: Any,
    holder: Any = None,
    *,
    step: Future[Any] | None = None,
    timeout: float = 10.0,
) -> None:
    """Return as soon as the server says that one session waits for a lock of another.

    The waiter is blocked in a thread of its own meanwhile.  A wait behind another waiter counts when
    that one waits for the holder in turn.  SQLite has no server to ask: there it is enough that the
    waiter's call for a lock has begun, and that the file's write lock is taken.

    :param waiter: a LockingSession, an AsyncLockingSession, or a Connection.
    :param holder: the same; None: anybody.
    :param step: what the waiter's thread does; that it ends without waiting is an error.
    :param timeout: seconds.
    :raises AssertionError: the waiter does not wait after this time, or its step has ended.
    :raises LockNotSupported: nothing can tell who waits on this database, or the account lacks the
        privilege.
    :raises TypeError: another kind of waiter or holder.
    """
    waiting, holding = _Side("waiter", waiter), None if holder is None else _Side("holder", holder)
    look = _Look(waiting, holding)
    end = time.monotonic() + timeout
    pause = FIRST_LOOK
    try:
        while step is None or not step.done():
            if look.finds_wait():
                return
            if time.monotonic() >= end:
                raise AssertionError(f"the waiter does not wait for the holder after {timeout:g} s")
            threading.Event().wait(pause)
            pause = NEXT_LOOK
    finally:
        look.close()
    raise AssertionError("the waiter did not wait for the holder: its step has ended")


class _Side:
    """A session or Connection, which another thread uses."""

    def __init__(self, name: str, who: Any) -> None:
        who = getattr(who, "sync_session", who)
        if not isinstance(who, (LockingSession, Connection)):
            raise TypeError(f"the {name} must be a session of ours or a Connection, not {who!r}")
        self._who = who

    def connections(self) -> Sequence[Connection]:
        if isinstance(self._who, Connection):
            return [self._who]
        try:
            return context_of(self._who).connections.all()
        except RuntimeError:  # the other thread is adding one
            return []

    def ids(self) -> set[int]:
        found = map(connection_id, self.connections())
        return {number for number in found if number is not None}

    def is_locking(self) -> bool:
        """Return whether a call for a lock is under way."""
        if isinstance(self._who, Connection):
            raise LockNotSupported("of a Connection to SQLite nobody can tell whether it waits")
        return context_of(self._who).call is not None


class _Look:
    """Asks who waits, again and again."""

    def __init__(self, waiter: _Side, holder: _Side | None) -> None:
        self._waiter, self._holder = waiter, holder
        self._loop = LoopThread()
        self._server: ServerWaits | None = None
        self._engine: Engine | None = None

    def finds_wait(self) -> bool:
        """Return whether the waiter waits now."""
        connections = self._waiter.connections()
        if not connections:
            return False
        engine = self._engine = connections[0].engine
        if locks_database(engine):
            held = self._holder is None or bool(self._holder.connections())
            return held and self._waiter.is_locking() and self._run(lambda: _is_locked(engine))
        self._server = self._server or self._connect(engine)
        blockers = self._run(self._server.blockers)
        if blockers is None:
            raise LockNotSupported("the account may not read who waits: see lock_waits()")
        found = blocked_by(self._waiter.ids(), blockers)
        return bool(found if self._holder is None else found & self._holder.ids())

    def close(self) -> None:
        """Close the connection."""
        if self._server is not None:
            self._run(self._server.close)
        self._loop.stop()

    def _connect(self, engine: Engine) -> ServerWaits:
        if monitoring_of(engine) is None:
            raise LockNotSupported(f"nobody tells who waits on {product_of(engine.dialect)}")
        found: ServerWaits = self._run(lambda: ServerWaits(engine))
        return found

    def _run(self, question: Callable[[], Any]) -> Any:
        assert self._engine is not None
        if self._engine.dialect.is_async:
            return self._loop.run_function(question)
        return question()


def _is_locked(engine: Engine) -> bool:
    """Return whether another connection has the write lock of the database."""
    with side_connection(engine, {}) as connection:
        try:
            connection.begin()
            strategy_for(connection).begin(connection, _AT_ONCE, None)
        except OperationalError:
            return True
        return False
