"""Threads that take one way after the other until they are asked to stop."""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.reliability.faults.model import Injected, Log, current
from tests.reliability.faults.ways import WAYS, Desk, go_on

CLIENTS = 6

#: Seconds to wait for a lock: a stalled client must not stop the others.
LOCK_TIMEOUT = 4.0

#: Seconds to pause after an error.
BREATH = 0.01

#: Seconds after which a client that was asked to stop counts as hanging.
PATIENCE = 60.0


class Clients:
    """The threads of one run.

    :param before: called before each update.
    :param pause: called between a change and its commit.
    """

    def __init__(
        self,
        engine: Engine,
        log: Log,
        seed: int,
        before: Callable[[], None] = go_on,
        pause: Callable[[], None] = go_on,
    ) -> None:
        self.log = log
        self._before = before
        self._stop = threading.Event()
        factory = sessionmaker(engine, class_=LockingSession, lock_timeout=LOCK_TIMEOUT)
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(Desk(factory, log, random.Random(f"{seed} {number}"), pause),),
                name=f"client {number}",
                daemon=True,
            )
            for number in range(CLIENTS)
        ]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run the clients during the block; afterwards all have ended."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()

    def join(self) -> None:
        """Wait until each finishes its current update.

        :raises TimeoutError: a client hangs; standard error shows where.
        """
        for thread in self._threads:
            thread.join(PATIENCE)
        if hanging := [thread.name for thread in self._threads if thread.is_alive()]:
            faulthandler.dump_traceback(sys.stderr)
            msg = f"{', '.join(hanging)} still hang, {PATIENCE:g} s after they were asked to stop"
            raise TimeoutError(msg)

    def _work(self, desk: Desk) -> None:
        while not self._stop.is_set():
            self._before()
            if not take(desk):
                self._stop.wait(BREATH)  # do not flood an absent server with requests


def take(desk: Desk, way: str | None = None) -> bool:
    """Take a way to its end, and return whether it is acknowledged; record the error if not."""
    current.set(None)
    try:
        WAYS[way or desk.chance.choice(list(WAYS))](desk)
    except BaseException as error:  # noqa: BLE001  # a thread has nobody to raise it to
        desk.log.reached_client(error, Injected)
        attempt = current.get()
        if attempt is not None:
            desk.log.give_up(attempt)
        return False
    else:
        return True
    finally:
        desk.log.update_ended()
