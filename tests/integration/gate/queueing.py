"""Wait until somebody queues at a gate, and see who is let in."""

from __future__ import annotations

import asyncio
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
