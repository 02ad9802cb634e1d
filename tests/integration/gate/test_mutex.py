"""The mutex of gate.run(): a garbage collection in its midst may close what a dead task has left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from sa_doclock import DocumentGate
from sa_doclock.features.gate.combined import CombinedCommits, new_call
from sa_doclock.features.gate.mutex import Mutex
from tests.support.actors import PATIENCE
from tests.support.models import Order


class Factory:
    """A session factory that starts a garbage collection when the gate looks for its queue."""

    collects = False

    def __call__(self) -> Any:
        raise ConnectionRefusedError

    def __hash__(self) -> int:
        if self.collects:
            gc.collect()
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Leave it to the test when garbage is collected."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def leave_garbage(commits: CombinedCommits, factory: Factory) -> Any:
    """Leave what is left of a task that waits in a queue; return the queue."""
    call = new_call(factory, Order, 1, lambda _session, order: order, None)
    loop = asyncio.new_event_loop()
    call.answer = loop.create_future()
    loop.close()
    entered = commits._entered("key", call)
    queue = entered.__enter__()
    cycle: list[Any] = [entered]
    cycle.append(cycle)
    return queue


@pytest.mark.usefixtures("no_collection")
def test_a_task_that_is_collected_under_the_mutex() -> None:
    gate, factory = DocumentGate(), Factory()
    queue = leave_garbage(gate._combined, factory)
    assert queue.waiting
    found: list[BaseException] = []

    def run() -> None:
        factory.collects = True
        try:
            gate.run(factory, Order, 2, lambda _session, order: order)
        except ConnectionRefusedError as error:
            found.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert found
    assert not queue.waiting


def test_what_a_finalizer_asks_for_comes_at_the_end_of_the_block() -> None:
    mutex, done = Mutex(), list[int]()
    mutex.run(lambda: done.append(1))
    with mutex.held():
        mutex.run(lambda: done.append(2))
        assert done == [1]
    assert done == [1, 2]


def test_what_was_left_at_the_very_end_comes_in_the_next_block() -> None:
    mutex, done = Mutex(), list[int]()
    mutex._later.append(lambda: done.append(1))
    with mutex.held():
        assert done == [1]
