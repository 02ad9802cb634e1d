"""The round trips of a queue of gate.run() whose functions fail, against those of as many by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, cast

import pytest

from sa_doclock import DocumentGate
from sa_doclock.features.gate import combined, queues_of
from sa_doclock.features.gate.combined_turn import Call, Turn, _Undone

CALLERS, CALLS = 32, 1500
Take = Callable[[], Call | None]
# BEGIN, the lock, the parts, two UPDATEs, COMMIT; one that fails has an UPDATE, or two, less.
SHARED, RAISED, REFUSED = 6, 4, 5
# By hand, and where each has a transaction of its own, BEGIN and the lock are on their way while
# another one holds the document.
BY_HAND = {"saved": 4, "raised": 2, "refused": 3}


class Failed(Exception):
    """A function has failed as it was made to."""


class Queue:
    """Callers of one document, each of which calls again at once; no server is asked."""

    def __init__(self, kind: str, share: float) -> None:
        self.gate, self._kind, self._share = DocumentGate(), kind, share
        self._chance, self.by_gate, self.by_hand = Random(1), 0, 0

    def enter(self) -> Call:
        fails = self._chance.random() < self._share
        self.by_hand += BY_HAND[self._kind if fails else "saved"]
        function, factory = cast("Any", fails), cast("Any", None)  # neither is called
        call = Call(
            key=1,
            shared=False,
            next_may_follow=False,
            session_factory=factory,
            entity=Queue,
            ident=1,
            function=function,
            seconds=None,
            is_task=False,
        )
        queues_of(self.gate).join(call, under_asyncio=False)
        return call

    def turn(self, head: Call, *, most: int, alone: bool) -> Turn:
        queue = self

        class Counted(Turn):
            def run(self, take: Take, note_granted: Callable[[], object]) -> None:
                self.has_ended = True
                try:
                    queue.by_gate += queue.cost(self, iter(take, None), alone=alone)
                except _Undone as undone:
                    self._blame(undone)

        return Counted(head, most=most, alone=alone)

    def cost(self, turn: Turn, calls: Iterator[Call | None], *, alone: bool) -> int:
        for call in calls:
            assert call is not None
            if call is turn.taken[0]:
                call.forget()
            if _fails(call) and not call.is_skipped and self._kind == "raised":
                self.by_gate += BY_HAND["raised"] if alone else RAISED
                call.error = Failed()
                raise _Undone(call.error, call)
        if any(map(_fails, turn.taken)) and self._kind == "refused":
            self.by_gate += BY_HAND["refused"] if alone else REFUSED
            raise _Undone(Failed())
        turn.is_saved = True
        return BY_HAND["saved"] if alone else SHARED


def _fails(call: Any) -> bool:
    return bool(call.function)


def times_by_hand(kind: str, share: float, monkeypatch: pytest.MonkeyPatch) -> float:
    queue = Queue(kind, share)
    monkeypatch.setattr(combined, "Turn", queue.turn)
    standing, answered = [queue.enter() for _ in range(CALLERS)], 0
    while answered < CALLS:
        head = next(call for call in standing if call.admitted)
        queues_of(queue.gate)._lead(head)
        done = [call for call in standing if call.is_done]
        queues_of(queue.gate).leave(done)
        standing = [call for call in standing if not call.is_done]
        standing += [queue.enter() for _ in done]
        answered += len(done)
    return queue.by_hand / queue.by_gate


TABLE: dict[str, dict[float, float]] = {  # of docs/gate.md
    "raised": {0: 22, 0.03: 12, 0.1: 6.4, 0.3: 2.5, 0.4: 1.8, 0.6: 1, 1: 1},
    "refused": {0: 22, 0.03: 3, 0.1: 1, 0.3: 1, 1: 1},
}


@pytest.mark.parametrize("kind", TABLE)
def test_a_queue_is_never_slower_than_by_hand(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {share: times_by_hand(kind, share, monkeypatch) for share in TABLE[kind]}
    assert found == {share: pytest.approx(times, rel=0.2) for share, times in TABLE[kind].items()}
    assert min(found.values()) > 0.95  # it has to find out once that its functions fail
