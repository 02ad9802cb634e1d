"""Batch sessions with short pauses, and a counter of their tries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy import event

from tests.support.actors import PATIENCE

#: The statements of a try that does not wait; on SQLite, with a busy_timeout of 0.
_TRIES = ("NOWAIT", "BEGIN IMMEDIATE")


class Tries:
    """Counts, by thread, the statements that try to lock without waiting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.by_thread: dict[int, int] = {}
        self._held_up: int | None = None

    def note(self, _: object, __: object, statement: str, *___: object) -> None:
        if not any(words in statement for words in _TRIES):
            return
        with self._changed:
            thread = threading.get_ident()
            self.by_thread[thread] = self.by_thread.get(thread, 0) + 1
            if self._held_up is not None:
                self._held_up += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._held_up is None, PATIENCE)

    @property
    def count(self) -> int:
        return sum(self.by_thread.values())

    def wait_for(self, threads: int, each: int = 2) -> None:
        """Return when this many threads made this many tries; the first of each failed."""

        def done() -> bool:
            return sum(tried >= each for tried in self.by_thread.values()) >= threads

        with self._changed:
            assert self._changed.wait_for(done, PATIENCE), self.by_thread

    @contextmanager
    def held_up(self, threads: int) -> Iterator[None]:
        """Block the next try of this many threads until the block ends."""
        with self._changed:
            self._held_up = 0
            assert self._changed.wait_for(lambda: self._held_up == threads, PATIENCE)
        try:
            yield
        finally:
            with self._changed:
                self._held_up = None
                self._changed.notify_all()


@contextmanager
def seeing_tries(engine: sa.Engine) -> Iterator[Tries]:
    """Count the tries of this engine."""
    tries = Tries()
    event.listen(engine, "before_cursor_execute", tries.note)
    yield tries
    event.remove(engine, "before_cursor_execute", tries.note)
