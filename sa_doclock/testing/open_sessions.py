"""The sessions of this process that are in a transaction, and how to end them from outside."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import greenlet_spawn

from ..caller import line_of_program
from ..dialects import strategy_class
from ..dialects.base import TransactionLifecycle
from ..events import ReleasedLock
from ..keys import DocumentKey, LockedName, document_label, public_key
from ..options import LockOptions, lock_label
from ..session import LockingSession
from ..sqlalchemy_internals import closes_connection

_PATIENCE: Final = 1.0  # seconds for a thread that is about to end its transaction
_LIMIT: Final = 5.0  # seconds for a ROLLBACK in an event loop


@dataclass(eq=False)
class OpenTransaction:
    """The transaction that a session is in.

    :ivar owner: the answer of :class:`OpenSessions`'s function when it began.
    :ivar began: the line of the program, ``shop/orders.py:31``.
    :ivar locked: the line of the program that took the first lock, or None.
    """

    owner: Any
    began: str | None
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop | None
    connections: WeakSet[Connection] = field(default_factory=WeakSet)
    held: dict[DocumentKey | LockedName, LockOptions] = field(default_factory=dict)
    locked: str | None = None

    def is_of_another_thread(self) -> bool:
        """Return whether another thread, which still runs, began it."""
        return self.thread is not threading.current_thread() and self.thread.is_alive()

    def is_in_use(self, session: Session) -> bool:
        """Return whether a call of the session is in progress in that thread.

        No other thread may use the driver then: the process may crash.
        """
        if self.loop is not None or not self.is_of_another_thread():
            return False
        ours: list[object] = [session, *self.connections]
        frame = sys._current_frames().get(self.thread.ident or 0)  # noqa: SLF001  # documented
        while frame is not None and not any(frame.f_locals.get("self") is own for own in ours):
            frame = frame.f_back
        return frame is not None


class OpenSessions:
    """Knows each session whose transaction began after :meth:`listen`, whatever its class.

    The references to sessions are weak.

    :param owner: called when a transaction begins.
    """

    def __init__(self, owner: Callable[[], Any]) -> None:
        self._owner = owner
        self._changed = threading.Condition()
        self._open: WeakKeyDictionary[Session, OpenTransaction] = WeakKeyDictionary()
        self._listeners: Sequence[tuple[type[Session], str, Callable[..., None]]] = (
            (Session, "after_begin", self._note_begin),
            (Session, "after_transaction_end", self._note_end),
            (LockingSession, "lock_acquired", self._note_lock),
            (LockingSession, "locks_released", self._note_release),
        )

    def listen(self) -> None:
        """Begin to listen."""
        for listener in self._listeners:
            event.listen(*listener)

    def forget(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            event.remove(*listener)

    def found(self) -> list[tuple[Session, OpenTransaction]]:
        """Return the sessions that are in a transaction, those with locks first."""
        with self._changed:
            return sorted(self._open.items(), key=lambda item: not item[1].held)

    def wait_for_threads(self, sessions: Iterable[tuple[Session, OpenTransaction]]) -> None:
        """Wait a moment for sessions that other threads use: they may be about to end."""
        used = [session for session, opened in sessions if opened.is_of_another_thread()]
        with self._changed:
            self._changed.wait_for(
                lambda: not any(session in self._open for session in used), timeout=_PATIENCE
            )

    def _note_begin(
        self, session: Session, _transaction: SessionTransaction, connection: Connection
    ) -> None:
        with self._changed:
            found = self._open.get(session)
            if found is None:
                began, thread = line_of_program(), threading.current_thread()
                found = OpenTransaction(self._owner(), began, thread, _running_loop())
                self._open[session] = found
            found.connections.add(connection)

    def _note_end(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            with self._changed:
                self._open.pop(session, None)
                self._changed.notify_all()

    def _note_lock(
        self,
        session: Session,
        document: DocumentKey | LockedName,
        lock: LockOptions,
        _waited: float,
    ) -> None:
        found = self._open.get(session)
        if found is not None:
            if not found.held:
                found.locked = line_of_program()
            found.held.setdefault(document, lock)

    def _note_release(self, session: Session, released: Sequence[ReleasedLock], _how: str) -> None:
        found = self._open.get(session)
        if found is not None:
            for lock in released:
                found.held.pop(lock.document, None)


def label_of(held: tuple[DocumentKey | LockedName, LockOptions]) -> str:
    """Return a held lock as logs name it: ``Order 42 FOR UPDATE``."""
    (entity, identity), lock = held
    return f"{document_label(entity, public_key(identity))} {lock_label(lock)}"


def end_session(session: Session, transaction: OpenTransaction) -> Exception | None:
    """Close a session, whichever thread or event loop has used it.

    If a ROLLBACK cannot be sent, because an event loop is closed or a thread waits, cut the
    connection.

    :returns: the error that prevented closing it, or None.
    """
    if not _is_idle(session, transaction):
        for connection in transaction.connections:
            _shut_down(connection)  # it ends the thread's statement
        if not _is_idle(session, transaction):
            return RuntimeError(f"thread {transaction.thread.name} is in the middle of a call")
    error: Exception | None = None
    for end in (_close, _cut):
        try:
            end(session, transaction)
        except Exception as caught:  # noqa: BLE001, PERF203  # the other sessions have to be closed
            error = caught
        else:
            return None
    return error


def _is_idle(session: Session, transaction: OpenTransaction) -> bool:
    """Return whether no thread uses the session, after a moment of patience."""
    end = time.monotonic() + _PATIENCE
    while transaction.is_in_use(session) and time.monotonic() < end:
        time.sleep(0.01)
    return not transaction.is_in_use(session)


def _close(session: Session, transaction: OpenTransaction) -> None:
    """Close the session in its own event loop, or in this thread.

    :raises RuntimeError: the loop is closed.
    """
    loop = transaction.loop
    if loop is None:
        session.close()
        return
    if loop.is_closed():
        raise RuntimeError("the event loop of the session is closed")

    async def close() -> None:
        await asyncio.wait_for(greenlet_spawn(session.close), _LIMIT)

    if loop.is_running():
        asyncio.run_coroutine_threadsafe(close(), loop).result(_LIMIT)
    else:
        loop.run_until_complete(close())


def _cut(session: Session, transaction: OpenTransaction) -> None:
    """Cut its connections, so that the server rolls back.

    :raises RuntimeError: the session does not own them.
    """
    root, connections = session.get_transaction(), list(transaction.connections)
    if root is None:
        return  # the thread has just ended it
    if not all(closes_connection(root, connection) for connection in connections):
        raise RuntimeError("its connection belongs to the program")
    have_socket = [_shut_down(connection) for connection in connections]
    if transaction.loop is None or all(have_socket):
        session.invalidate()
        return
    # aiosqlite waits for its own thread, in any event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, greenlet_spawn(session.invalidate)).result()


def _shut_down(connection: Connection) -> bool:
    """Shut down the socket to the server; return whether there is one."""
    known = strategy_class(connection.dialect)
    lifecycle = TransactionLifecycle() if known is None else known.lifecycle
    driver_connection = connection.connection.driver_connection
    descriptor = lifecycle.descriptor(driver_connection)
    # Without has_terminate, as for psycopg, the driver's close() needs no event loop.
    if descriptor is None or (connection.dialect.is_async and not connection.dialect.has_terminate):
        return False
    with suppress(OSError):  # the server has closed it
        copy = socket.socket(fileno=descriptor)
        try:
            copy.shutdown(socket.SHUT_RDWR)
        finally:
            copy.detach()  # the descriptor belongs to the driver
    if connection.dialect.is_async:
        # Its transport can be closed only in its event loop.  Kept, because the garbage collector
        # would warn in an unrelated test.
        _kept.append(driver_connection)
    return True


# Threads: only appended to.
_kept: Final[list[Any]] = []


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
