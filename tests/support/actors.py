"""Sessions that act side by side, each in its own thread, one step at a time.

A test is the director: it says who takes which step and when. A step that ought to wait for a lock
is *started*, and the test goes on when the server says that it waits (tests/support/waits.py).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.support.databases import Database

S = TypeVar("S", bound=Session)
T = TypeVar("T")

#: Seconds after which a step that should have ended is taken to hang.
PATIENCE = 30.0


class Step(Future[T]):
    """A task of an actor; a failure that nobody looks at fails the test in the end."""

    looked_at = False

    def result(self, timeout: float | None = PATIENCE) -> T:
        """Return what the step returned, or raise what it raised."""
        self.looked_at = True
        return super().result(timeout)

    def exception(self, timeout: float | None = PATIENCE) -> BaseException | None:
        """Return what the step raised, None when it ended well."""
        self.looked_at = True
        return super().exception(timeout)


class Actor(Generic[S]):
    """One session and one thread, for life: no step of an actor overtakes another."""

    def __init__(self, name: str, session_factory: Callable[[], S], database: Database) -> None:
        """Start the thread; the session is made in it."""
        self.name = name
        self.database = database
        self._steps: list[Step[object]] = []
        self._inbox: queue.SimpleQueue[Callable[[S], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._live, args=(session_factory,), name=name, daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        return self.name

    def starts(self, action: Callable[[S], T]) -> Step[T]:
        """Begin a step, ``action(session)``, and return at once."""
        step: Step[T] = Step()

        def take(session: S) -> None:
            self.database.connections.forget_statement(threading.get_ident())
            try:
                step.set_result(action(session))
            except BaseException as exc:  # noqa: BLE001  # it belongs to the test
                step.set_exception(exc)

        self._steps.append(step)  # type: ignore[arg-type]  # only exceptions are read from it
        self._inbox.put(take)
        return step

    def does(self, action: Callable[[S], T], *, timeout: float = PATIENCE) -> T:
        """Take a step to its end: return what ``action(session)`` returns, raise what it raises."""
        return self.starts(action).result(timeout)

    def connection_ids(self) -> frozenset[int]:
        """Return the server's ids of the connections that the session has checked out now."""
        return self.database.connections.ids_of(self.thread_id)

    def connection_id(self) -> int:
        """Return the id of the only connection which the session has checked out."""
        (only,) = self.connection_ids()
        return only

    def server_pid(self) -> int:
        """Return the id that the server ends the connection by; not :meth:`connection_id` behind a pooler."""
        if not self.database.pooled:
            return self.connection_id()
        query = sa.text(
            "SELECT pid FROM pg_stat_activity WHERE application_name = :name AND state <> 'idle'"
        )
        with self.database.observer().connect() as server:
            found = server.execute(query, {"name": str(self.connection_id())})
            return int(found.scalar_one())

    @property
    def thread_id(self) -> int:
        """The actor's thread, as :func:`threading.get_ident` names it."""
        assert self._thread.ident is not None
        return self._thread.ident

    def leave(self) -> None:
        """Close the session once the steps so far are done; does not wait for that."""
        self._inbox.put(None)

    def join(self) -> None:
        """Wait until the actor has left; raise the first failure that nobody has looked at."""
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            msg = f"{self} still hangs in a step, {PATIENCE:g} s after it was asked to leave"
            raise TimeoutError(msg)
        for step in self._steps:
            if not step.looked_at and (failure := step.exception()):
                raise failure

    def _live(self, session_factory: Callable[[], S]) -> None:
        with session_factory() as session:
            while step := self._inbox.get():
                step(session)
