"""Wait until a session queues at a gate, and see which are admitted."""

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
    """Join the queue and wait; return whether it was admitted."""
    queues_of(gate).join(entry, under_asyncio=under_asyncio)
    if entry.wakeup is not None:
        entry.wakeup.wait(seconds)
    return entry.admitted


def wait_until_queued(gate: DocumentGate, *steps: Step[Any], number: int | None = None) -> None:
    """Return when this many wait at the gate; fail if one of the steps has ended."""
    wanted = len(steps) if number is None else number

    def queued() -> bool:
        for step in steps:
            assert not step.done(), f"it did not wait, and returned {step.result()!r}"
        return gate.waiting == wanted

    wait_until(queued)


async def until_queued(gate: DocumentGate, number: int) -> None:
    """Return when this many wait at the gate, some of them in this loop."""

    async def queued() -> None:
        while gate.waiting != number:  # noqa: ASYNC110  # the gate reports no arrivals
            await asyncio.sleep(0.005)

    await asyncio.wait_for(queued(), PATIENCE)


def in_use(engine: sa.Engine) -> int:
    """Count the connections checked out of the pool."""
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedout()
