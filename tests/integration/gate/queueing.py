"""Wait until somebody queues at a gate, and see who is let in."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from sa_doclock import DocumentGate
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate.queue import QueueEntry
from tests.support.actors import PATIENCE, Step
from tests.support.waits import wait_until


def enter(
    gate: DocumentGate, entry: QueueEntry, *, seconds: float | None, under_asyncio: bool
) -> bool:
    """Stand in the queue, and wait; return whether it was admitted."""
    queues_of(gate).join(entry, under_asyncio=under_asyncio)
    if entry.wakeup is not None:
        entry.wakeup.wait(seconds)
    return entry.admitted


def wait_until_queued(gate: DocumentGate, *steps: Step[Any], number: int | None = None) -> None:
    """Return when so many wait at the gate; none of the steps may have ended instead."""
    wanted = len(steps) if number is None else number

    def queued() -> bool:
        for step in steps:
            assert not step.done(), f"it did not wait, and returned {step.result()!r}"
        return gate.waiting == wanted

    wait_until(queued)


async def until_queued(gate: DocumentGate, number: int) -> None:
    """Return when so many wait at the gate, some of them in this loop."""

    async def queued() -> None:
        while gate.waiting != number:  # noqa: ASYNC110  # nobody tells of who comes
            await asyncio.sleep(0.005)

    await asyncio.wait_for(queued(), PATIENCE)


def in_use(engine: sa.Engine) -> int:
    """Count the connections of the pool that somebody has."""
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedout()


class Walkers:
    """Threads that go into a line; who has come in is noted in this order."""

    def __init__(self, gate: DocumentGate) -> None:
        self.gate = gate
        self.came_in: list[str] = []
        self.places: dict[str, QueueEntry] = {}
        self._threads = ThreadPoolExecutor(32)
        self._coming: list[Future[None]] = []

    def send(self, name: str, *, shared: bool = False, seconds: float | None = None) -> None:
        """Let one come, and return when it is inside or stands in the line."""
        before = self.gate.waiting
        came = self._threads.submit(self._come, name, shared, seconds)
        self._coming.append(came)
        wait_until(lambda: came.done() or self.gate.waiting > before)
        if came.done():
            came.result()

    def _come(self, name: str, shared: bool, seconds: float | None) -> None:
        place = QueueEntry("it", shared, self.gate.next_waits_at_server)
        if enter(self.gate, place, seconds=seconds, under_asyncio=False):
            self.places[name] = place
            self.came_in.append(name)
        else:
            queues_of(self.gate).leave([place])
            self.came_in.append(f"not {name}")

    def grant(self, *names: str) -> None:
        queues_of(self.gate).note_granted([self.places[name] for name in names])

    def leave(self, *names: str) -> None:
        queues_of(self.gate).leave([self.places.pop(name) for name in names])

    def are_in(self, *names: str) -> bool:
        """Return whether these have come in, in this order, and no others."""
        wait_until(lambda: len(self.came_in) >= len(names))
        return self.came_in == list(names)

    def go_home(self) -> None:
        """Let everybody through who still waits."""
        for came in self._coming:
            while not came.done():
                self.leave(*tuple(self.places))
        self.leave(*tuple(self.places))
        self._threads.shutdown()
        assert not queues_of(self.gate).documents
