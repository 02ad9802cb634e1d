"""The calls of gate.run() in the queues of a gate; the head of a queue runs the functions.

It locks the document, runs the functions of the queue in order of arrival, and saves them with one
flush and one COMMIT.  It continues until its own function is answered; then the next call is the
head.  A call stays in its queue until it is answered, so one that must run again keeps its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from sqlalchemy.util import greenlet_spawn

from ...errors import LockMisuse, LockNotAvailable
from ...keys import document_label
from ...process_waits import TaskWakeup, observed_wait
from .combined_turn import Call, Turn, interrupted, running
from .queue import GateQueues, under_mutex

_ALONE: Final = 64  # with so many failure points, each function gets its own transaction
_MOST: Final = 128
_REMEMBERED: Final = 1000  # queues whose failure points are kept


class Failures:
    """The failures of one queue, which decide how many functions share its next transaction.

    If a flush fails, the transaction is rolled back, and half of its functions run again, until one
    is alone: the error is its own.  If functions fail so often that this takes longer than one
    transaction each, each gets its own, and the next caller waits at the server meanwhile, as
    without the gate.

    :ivar points: the cost of the failures, less the answers since.
    :ivar suspects: the number of functions at the front, one of which made a flush fail.
    """

    points = suspects = 0

    def next_turn(self, head: Call, combine: int) -> Turn:
        """Return the next transaction, for as many functions as may share it."""
        alone = self.points >= _ALONE
        most = max(self.suspects // 2, 1) if self.suspects else combine
        return Turn(head, most=1 if alone else most, alone=alone)

    def count(self, turn: Turn) -> None:
        """Count the cost of a transaction, and its answers."""
        done = sum(call.is_done for call in turn.taken)
        left = 0 if turn.is_found else max(self.suspects - done, 0)
        self.suspects = turn.suspects or left
        self.points = min(max(self.points + turn.cost - done, 0), _MOST)


class CombinedCommits(GateQueues):
    """The queues of one gate, with the calls of gate.run().

    :param combine: the most functions in one transaction.
    """

    def __init__(self, combine: int) -> None:
        self._combine = combine
        super().__init__()

    def reset(self) -> None:
        """See :class:`GateQueues`."""
        super().reset()
        self.failures: dict[Any, Failures] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, call: Call) -> Any:
        """Return what the call's function returns.  See :meth:`DocumentGate.run`."""
        self._check_not_nested(call)
        self._attend(call, joins=True)
        return call.result()

    async def async_serve(self, call: Call) -> Any:
        """See :meth:`DocumentGate.async_run`."""
        self._check_not_nested(call)
        self.join(call, under_asyncio=True)
        task = None
        try:
            for seconds in self._waits(call):
                await call.wakeup.come(seconds)  # type: ignore[union-attr]
            if not call.is_done:
                task = self._attending(call)
                call.notified, call.wakeup = True, TaskWakeup()  # wakes it up when it is answered
                await call.wakeup.come(None, task)
                if task.done() and not task.cancelled():
                    task.result()
        except asyncio.CancelledError:
            self._withdraw(call)
            if task is None and call.is_done:
                self.leave([call])
            elif task is None:
                self._attending(call)  # its function may have to run again
            raise
        return call.result()

    def _attending(self, call: Call) -> asyncio.Task[None]:
        """Run the call in a task of its own, which outlives a cancelled caller."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.leave([call])  # it was cancelled before its first step

        attends = greenlet_spawn(partial(self._attend, call, joins=False))
        task = asyncio.get_running_loop().create_task(attends)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    def _check_not_nested(self, call: Call) -> None:
        """:raises LockMisuse: the caller is a function of gate.run()."""
        turn = running.get()
        if turn is not None and not turn.has_ended:
            raise LockMisuse(
                f"a function of gate.run() called gate.run() of {document_label(call.entity, call.ident)}: "
                "the function may run again, and this call would save each time. Call it after the outer "
                "gate.run() returns, or lock the second document in the function's session"
            )

    def _attend(self, call: Call, *, joins: bool) -> None:
        """Wait until the call is answered; run the queue while this call is its head."""
        try:
            if joins:
                self.join(call, under_asyncio=False)
            for seconds in self._waits(call):
                call.wakeup.wait(seconds)  # type: ignore[union-attr]
            while not call.is_done:
                self._lead(call)
            self.leave([call])
        except BaseException:
            if call.waits:
                call.finish(call.named(interrupted()))
            self.leave([call])
            raise

    def _waits(self, call: Call) -> Iterator[float | None]:
        """Yield how long to wait for the wakeup, until the call is answered or the head of its queue."""
        if call.wakeup is None or call.notified:
            return
        with observed_wait():
            yield call.left()
            if not (call.admitted or call.is_done or self._withdraw(call)):
                while not (call.admitted or call.is_done):  # its function is running
                    yield None

    @under_mutex
    def _withdraw(self, call: Call) -> bool:
        """Refuse a call whose time is over; return False if its function has started."""
        waits = call.waits
        if waits:
            late = "other callers hold the document; try again later, or wait longer"
            call.finish(call.named(LockNotAvailable(late)))
        return waits

    def _lead(self, call: Call) -> None:
        turn = (self.failures.get(call.key) or Failures()).next_turn(call, self._combine)
        behind = [other for other in self._behind(call) if other.seconds is None]
        try:
            turn.run(partial(self._take, turn), partial(self.note_granted, [call]))
            if isinstance(turn.error, LockNotAvailable) and not turn.taken and call.seconds is None:
                # A call without a limit has the server's limit, which has passed for all of them.
                self._answer(
                    [other for other in behind if other is not call and self._withdraw(other)]
                )
            self._end(turn)
        except BaseException:
            self._end(turn)
            raise

    @under_mutex
    def _behind(self, head: Call) -> list[Any]:
        """Return the calls that may share a turn with this one, itself included."""
        queue: Iterable[Any] = self.documents.get(head.key, ())
        return [call for call in queue if call.waits and (call is head or not call.admitted)]

    @under_mutex
    def _take(self, turn: Turn) -> Call | None:
        """Take the next call in order of arrival, including late arrivals."""
        while len(turn.taken) < turn.most:
            while turn.standing:
                call = turn.standing.popleft()
                if call.waits:
                    turn.taken.append(call)
                    call.turn = turn
                    return call
            turn.standing.extend(self._behind(turn.head))
            if not turn.standing:
                break
        return None

    def _answer(self, calls: list[Call]) -> None:
        self.leave(calls)
        for call in calls:
            if call.wakeup is not None:
                call.wakeup.notify()

    def _end(self, turn: Turn) -> None:
        """Answer the calls whose outcome is final; let the others wait again.

        Called a second time after an interruption.
        """
        turn.settle()
        head = turn.head
        if head.is_done and head.wakeup is not None:
            head.wakeup.notify()  # first: it arrived first, and leaves after the count
        self._answer([call for call in turn.taken if call.is_done and call is not head])
        if len(self.failures) > _REMEMBERED:
            self.failures.clear()
        failures = self.failures.setdefault(head.key, Failures())
        failures.count(turn)
        if not (failures.points or failures.suspects):
            self.failures.pop(head.key, None)
