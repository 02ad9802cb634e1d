"""Somebody else takes all connections of the pool, for longer than a client waits for one."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import QueuePool

#: Seconds that a client waits for a connection: shorter than the crowd stays.
POOL_TIMEOUT = 0.05
STAY = 0.15

#: Seconds after which the crowd takes what there is.
PATIENCE = 5.0


class FullPool:
    name = "pool filled by others"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        assert isinstance(engine.pool, QueuePool)
        self._pool = engine.pool
        self._open = threading.Event()
        self._open.set()

    def before(self) -> None:
        """Let the crowd in first: a client calls this before each update.

        The pool has none: who has just given a connection back is the first to get it again.
        """
        self._open.wait(PATIENCE)

    def inject(self, chance: random.Random) -> int:
        self._open.clear()
        wanted, taken = self._pool.size(), list[Connection]()
        end = time.monotonic() + PATIENCE
        while len(taken) < wanted and time.monotonic() < end:
            with suppress(sa.exc.TimeoutError):
                taken.append(self._engine.connect())
        self._open.set()
        threading.Event().wait(STAY)
        for connection in taken:
            connection.close()
        return int(len(taken) == wanted)

    def heal(self) -> int:
        return 0
