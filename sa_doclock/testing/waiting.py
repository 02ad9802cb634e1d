"""wait_until_blocked(): waits until the server reports that one session waits for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from ..core.session import context_of
from ..dialects import product_of, side_connection, strategy_for
from ..errors import LockNotSupported
from ..features.gate import SessionQueue
from ..options import LockOptions
from ..session import LockingSession
from .lock_waits import (
    FIRST_LOOK,
    NEXT_LOOK,
    ServersAsked,
    blocked_by,
    connection_id,
    holds_file,
    locks_database,
    monitoring_of,
    runs_for_file_lock,
)
from .loops import LoopThread

_AT_ONCE: Final = LockOptions.ForUpdate | LockOptions.NoWait


def wait_until_blocked(
    waiter: Any, holder: Any = None, *, step: Future[Any] | None = None, timeout: float = 10.0
) -> None:
    """Return as soon as the server reports that one session waits for a lock of another.

    The waiter is blocked in its own thread meanwhile.  A wait behind another waiter counts if that
    one waits for the holder in turn.  SQLite has no server to ask: there the waiter runs a
    statement that needs the file's write lock, which the holder has; statements are known from the
    import of this kit on.  A session that waits at a :class:`DocumentGate` waits for the holder of
    its document there.  A session with ``priority="batch"`` tries repeatedly, and never waits.

    Example::

        with Session() as holder, Session() as waiter, ThreadPoolExecutor() as pool:
            holder.get_one_entity(Order, 42, LockOptions.ForUpdate)
            step = pool.submit(waiter.get_one_entity, Order, 42, LockOptions.ForUpdate)
            wait_until_blocked(waiter, holder, step=step)
            holder.rollback()
            step.result()
            waiter.rollback()

    :param waiter: a LockingSession, an AsyncLockingSession, or a Connection.
    :param holder: the same; None: anybody.
    :param step: the call in the waiter's thread; it is an error if it ends without waiting.
    :param timeout: seconds.
    :raises AssertionError: the waiter does not wait by then, or its step has ended.
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
                raise AssertionError(f"the waiter did not wait for the holder within {timeout:g} s")
            threading.Event().wait(pause)
            pause = NEXT_LOOK
    finally:
        look.close()
    raise AssertionError("the waiter did not wait for the holder: its step has ended")


class _Side:
    def __init__(self, name: str, who: Any) -> None:
        who = getattr(who, "sync_session", who)
        if not isinstance(who, (LockingSession, Connection)):
            raise TypeError(f"the {name} must be a LockingSession or a Connection, not {who!r}")
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

    def waits_at_gate(self, holder: _Side | None) -> bool:
        """Return whether it waits at a gate that has admitted the holder; None: any holder."""
        waits_in = None if self.queue is None else self.queue.waits_in
        if waits_in is None or holder is None:
            return waits_in is not None
        return holder.queue is not None and holder.queue.is_in(waits_in)

    @property
    def queue(self) -> SessionQueue | None:
        if isinstance(self._who, Connection):
            return None
        return context_of(self._who).parts.find(SessionQueue)


class _Look:
    def __init__(self, waiter: _Side, holder: _Side | None) -> None:
        self._waiter, self._holder = waiter, holder
        self._loop = LoopThread()
        self._servers = ServersAsked(self._loop.run_function)

    def finds_wait(self) -> bool:
        if self._waiter.waits_at_gate(self._holder):
            return True
        connections = self._waiter.connections()
        if not connections:
            return False
        engine = connections[0].engine
        if locks_database(engine):
            return self._waits_for_file(engine)
        if monitoring_of(engine) is None:
            raise LockNotSupported(f"no lock waits are known on {product_of(engine.dialect)}")
        blockers = self._servers.blockers(engine)
        if blockers is None:
            raise LockNotSupported("the account cannot see lock waits: see lock_waits()")
        found = blocked_by(self._waiter.ids(), blockers)
        return bool(found if self._holder is None else found & self._holder.ids())

    def _waits_for_file(self, engine: Engine) -> bool:
        connections = self._waiter.connections()
        if not any(map(runs_for_file_lock, connections)):
            return False
        if self._holder is not None:
            return any(map(holds_file, self._holder.connections()))
        held: bool = self._servers.ask(engine, lambda: _is_locked(engine))
        return held and any(map(runs_for_file_lock, connections))

    def close(self) -> None:
        self._servers.close()
        self._loop.stop()


def _is_locked(engine: Engine) -> bool:
    with side_connection(engine, {}) as connection:
        try:
            connection.begin()
            strategy_for(connection).begin(connection, _AT_ONCE, None)
        except OperationalError:
            return True
        return False
