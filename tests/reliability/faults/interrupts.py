"""Exceptions like Ctrl-C, which nobody expects, at a place chosen at random."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from sqlalchemy import Engine, event

from tests.reliability.faults.log import Injected

PLACES = (
    "before_cursor_execute",
    "after_cursor_execute",
    "commit",
    "rollback",
    "in the block",
)


class Interrupts:
    name = "exceptions like Ctrl-C in the block"

    def __init__(self, engine: Engine) -> None:
        self._lock = threading.Lock()
        self._place: str | None = None
        self._done = 0
        for place in PLACES[:-1]:
            event.listen(engine, place, self._raiser(place))

    def pause(self) -> None:
        """Raise the exception, if one is due, between a client's changes and their commit."""
        self._raise_at("in the block")

    def inject(self, chance: random.Random) -> int:
        with self._lock:
            self._place = chance.choice(PLACES)
        return self._counted()

    def heal(self) -> int:
        with self._lock:
            self._place = None
        return self._counted()

    def _counted(self) -> int:
        with self._lock:
            done, self._done = self._done, 0
        return done

    def _raiser(self, place: str) -> Callable[..., None]:
        def listen(*_: object) -> None:
            self._raise_at(place)

        return listen

    def _raise_at(self, place: str) -> None:
        with self._lock:
            if self._place != place:
                return
            self._place = None
            self._done += 1
        raise Injected(place)
