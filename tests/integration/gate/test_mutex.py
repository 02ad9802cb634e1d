"""The mutex of gate.run(): a garbage collection in its midst may close what a dead task has left."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from itertools import count
from threading import Thread
from types import FrameType
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

    def block() -> list[int]:
        mutex.run(lambda: done.append(2))
        return [*done]

    assert mutex.call(block) == [1]
    assert done == [1, 2]


def test_what_was_left_at_the_very_end_comes_in_the_next_block() -> None:
    mutex, done = Mutex(), list[int]()
    mutex._later.append(lambda: done.append(1))
    assert mutex.call(lambda: [*done]) == [1]


class CtrlCAtCall:
    """Raises KeyboardInterrupt at the start of one function, which is where Python looks for signals."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, _what: str, _arg: object) -> None:
        if frame.f_globals.get("__name__", "").startswith(
            ("sa_doclock.features.gate", "contextlib")
        ):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def test_an_error_of_an_interrupted_caller_does_not_keep_it() -> None:
    gate, factory, found = DocumentGate(), Factory(), list[type[BaseException]]()

    def run() -> type[BaseException]:
        with pytest.raises((ConnectionRefusedError, KeyboardInterrupt)) as raised:
            gate.run(factory, Order, 1, lambda _session, order: order)
        kept.append(raised.value)
        return raised.type

    kept: list[BaseException] = []  # with its traceback, and the frames in it
    for number in count(1):
        before = sys.gettrace()
        sys.settrace(CtrlCAtCall(number))
        try:
            interrupted = run() is KeyboardInterrupt
        finally:
            sys.settrace(before)
        thread = Thread(target=lambda: found.append(run()), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert found == [ConnectionRefusedError] * number
        if not interrupted:
            break
