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

#: Seconds after which the crowd is content with fewer.
PATIENCE = 5.0


class FullPool:
    name = "pool filled by others"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = threading.Event()
        assert isinstance(engine.pool, QueuePool)
        self._pool = engine.pool

    def inject(self, chance: random.Random) -> int:
        """Take one after the other, as the clients give them back."""
        wanted, taken = self._pool.size(), list[Connection]()
        end = time.monotonic() + PATIENCE
        while len(taken) < wanted and time.monotonic() < end:
            with suppress(sa.exc.TimeoutError):
                taken.append(self._engine.connect())
        self._clock.wait(STAY)
        for connection in taken:
            connection.close()
        return int(len(taken) == wanted)

    def heal(self) -> int:
        return 0
