"""The mutex of a gate: a garbage collection in its midst may close what a dead task has left."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import count
from threading import Thread
from types import FrameType
from typing import Any

import pytest

from sa_doclock import DocumentGate
from sa_doclock.features.gate import queues_of
from sa_doclock.features.gate.queue import QueueEntry
from tests.integration.gate.queueing import enter
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


class Forgotten:
    """Leaves its queue when it is collected, as a session does that nobody has closed."""

    def __init__(self, gate: DocumentGate) -> None:
        self.gate, self.entry = gate, QueueEntry("key", shared=False, next_may_follow=False)
        assert enter(gate, self.entry, seconds=0, under_asyncio=False)
        self.cycle = self

    def __del__(self) -> None:
        queues_of(self.gate).leave([self.entry])


@pytest.mark.usefixtures("no_collection")
def test_a_session_that_is_collected_under_the_mutex() -> None:
    gate, factory = DocumentGate(), Factory()
    Forgotten(gate)
    assert len(queues_of(gate).documents) == 1
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
    assert queues_of(gate).documents == {}


class CtrlCAtCall:
    """Raises KeyboardInterrupt at the start of one function, which is where Python looks for signals."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, _what: str, _arg: object) -> None:
        ours = ("sa_doclock.features.gate", "contextlib")
        # Python prints what __del__() raises, and goes on: so does an interruption in it.
        if (
            frame.f_globals.get("__name__", "").startswith(ours)
            and frame.f_code.co_name != "__del__"
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
