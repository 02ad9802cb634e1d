"""Sessions that act concurrently, each in its own thread, one step at a time.

The test directs them: it decides who takes which step and when. It *starts* a step that should wait for a lock,
and continues once the server reports the wait (tests/support/waits.py).
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

#: After this many seconds, a step that should have ended counts as hanging.
PATIENCE = 30.0


class Step(Future[T]):
    """A task of an actor. A failure that no code inspects fails the test in the end."""

    looked_at = False

    def result(self, timeout: float | None = PATIENCE) -> T:
        """Return what the step returned, or raise what it raised."""
        self.looked_at = True
        return super().result(timeout)

    def exception(self, timeout: float | None = PATIENCE) -> BaseException | None:
        """Return the error of the step; None if it succeeded."""
        self.looked_at = True
        return super().exception(timeout)


class Actor(Generic[S]):
    """One session and one thread, for life: steps of an actor never overtake each other."""

    def __init__(self, name: str, session_factory: Callable[[], S], database: Database) -> None:
        """Start the thread, and make the session in it."""
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
        """Run a step to its end: return the result of ``action(session)``, or raise its error."""
        return self.starts(action).result(timeout)

    def connection_ids(self) -> frozenset[int]:
        """Return the server's ids of the connections that the session holds now."""
        return self.database.connections.ids_of(self.thread_id)

    def connection_id(self) -> int:
        """Return the id of the only connection that the session holds."""
        (only,) = self.connection_ids()
        return only

    def server_pid(self) -> int:
        """Return the id by which the server ends the connection; behind a pooler, this differs from :meth:`connection_id`."""
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
        """The actor's thread, as :func:`threading.get_ident` returns it."""
        assert self._thread.ident is not None
        return self._thread.ident

    def leave(self) -> None:
        """Close the session after the current steps, without waiting for it."""
        self._inbox.put(None)

    def join(self) -> None:
        """Wait until the actor ends; raise the first failure that no code inspected."""
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
