"""The calls of gate.run(), which stand in the queues of a gate; the first of a queue runs what waits.

It locks the document, runs the functions of the queue in order of arrival, and saves them with one
flush and one COMMIT.  It goes on until its own function is answered; then the next one is the first.
A call stays in its queue until it is answered, so that one that has to run again keeps its place.

If a flush fails, the transaction is undone, and half of its functions run again, until one is alone:
the error is its own.  Where functions fail so often that this would take longer than a transaction
each, each gets one, and the next caller waits at the server meanwhile: as without the gate.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy.util import greenlet_spawn

from ...core.documents import document_key, identity_of, mapper_of
from ...errors import LockMisuse, LockNotAvailable
from ...functions import call_checked, check_function
from ...keys import document_label
from ...options import LockOptions, check_wait
from .combined_turn import Call, Turn, interrupted, running
from .queue import NOWHERE, GateQueues
from .wakeup import TaskWakeup, observed_wait

# What a failure costs, in answers of a transaction each: sharing pays off until half of the functions
# raise, or one flush in sixteen fails.
_RAISED: Final = 2
_REFUSED: Final = 16
_ALONE: Final = 64
"""From so many points on each function has a transaction of its own."""
_MOST: Final = 128
_REMEMBERED: Final = 1000


class CombinedCommits(GateQueues):
    """The queues of one gate, with the calls of gate.run().

    :param combine: the most functions in one transaction.
    """

    def __init__(self, combine: int, *, next_waits_at_server: bool) -> None:
        self._combine, self._next_waits_at_server = combine, next_waits_at_server
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        # Of each queue whose functions have failed: what that has cost, less the answers since.
        self._points: dict[Any, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, call: Call) -> Any:
        """Return what the call's function returns.  See :meth:`DocumentGate.run`."""
        self._check_not_nested(call)
        self._attend(call)
        return call.result()

    async def async_serve(self, call: Call) -> Any:
        """See :meth:`DocumentGate.async_run`."""
        self._check_not_nested(call)
        self.join(call, under_asyncio=True)
        try:
            if isinstance(call.wakeup, TaskWakeup):
                with observed_wait():
                    await call.wakeup.come(call.left())
            if not call.is_done:
                task = self._attending(call)
                call.answered = TaskWakeup()
                await call.answered.come(None, task)
                if task.done() and not task.cancelled():
                    task.result()
        except asyncio.CancelledError:
            self._withdraw(call)
            if call.attending is None and call.is_done:
                self.leave([call])
            elif call.attending is None:
                self._attending(call)  # its function may have to run again
            elif call.is_done and call.wakeup is not None:
                call.wakeup.notify()
            raise
        return call.result()

    def _attending(self, call: Call) -> asyncio.Task[None]:
        """Return a task of its own: the cancellation of a caller is not that of the others."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.leave([call])  # it was cancelled before its first step

        loop = asyncio.get_running_loop()
        call.attending = task = loop.create_task(greenlet_spawn(self._attend, call))
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    def _check_not_nested(self, call: Call) -> None:
        """:raises LockMisuse: the caller is a function of gate.run()."""
        if any(not turn.has_ended for turn in running.get()):
            raise LockMisuse(
                f"gate.run() of {document_label(call.entity, call.ident)} was called by a function "
                "of gate.run(), which may run more than once, while this call would save each time; call it when the outer "
                "gate.run() has returned, or lock the second document by the function's session"
            )
        call.next_may_follow = self._next_waits_at_server

    def _attend(self, call: Call) -> None:
        """Wait until the call is answered, and run what waits while it is the first of its queue."""
        try:
            if call.queue is NOWHERE:
                self.join(call, under_asyncio=False)
            if call.wakeup is not None:
                with observed_wait():
                    call.wakeup.wait(call.left())
                    if not (call.admitted or call.is_done or self._withdraw(call)):
                        while not (call.admitted or call.is_done):  # its function runs
                            call.wakeup.wait(None)
            while not call.is_done:
                self._lead(call)
            self.leave([call])
        except BaseException:
            self._end(call)
            if call.waits:
                call.finish(call.named(interrupted()))
            self.leave([call])
            raise

    def _withdraw(self, call: Call) -> bool:
        """Refuse a call whose time is over; return False if its function has begun."""

        def withdraw() -> bool:
            if call.turn is None and not call.is_done:
                late = LockNotAvailable(
                    "other callers hold the document; try again later, or wait longer"
                )
                call.finish(call.named(late))
                return True
            return False

        return self._call(withdraw)

    def _lead(self, call: Call) -> None:
        """Run one transaction."""
        alone, suspects = self._points.get(call.key, 0) >= _ALONE, call.queue.suspects
        most = 1 if alone else max(suspects // 2, 1) if suspects else self._combine
        behind: list[Any] = self._call(lambda: [*call.queue.waiting])
        call.leads = turn = Turn(call, alone=alone)
        turn.run(self._taken(turn, most), partial(self.note_granted, [call]))
        if isinstance(turn.error, LockNotAvailable) and not turn.taken and call.seconds is None:
            self._refuse_late(behind)
        self._end(call)

    def _taken(self, turn: Turn, most: int) -> Iterator[Call]:
        """Take the calls in order of arrival, also those that come while others run."""
        head = turn.head
        standing: deque[Any] = deque()

        def take() -> Call | None:
            while standing and not standing[0].waits:
                standing.popleft()
            if not standing:
                standing.extend(call for call in (head, *head.queue.waiting) if call.waits)
            if not standing:
                return None
            call: Call = standing.popleft()
            turn.taken.append(call)
            call.turn = turn
            return call

        for _ in range(most):
            call = self._call(take)
            if call is None:
                return
            yield call

    def _refuse_late(self, calls: Sequence[Call]) -> None:
        """Refuse the calls without a limit of their own: they have waited for as long as the head."""
        self._answer([call for call in calls if call.seconds is None and self._withdraw(call)])

    def _answer(self, calls: Sequence[Call]) -> None:
        self.leave(calls)
        for call in calls:
            if call.wakeup is not None:
                call.wakeup.notify()

    def _end(self, head: Call) -> None:
        """Answer the calls of its transaction of which all is known; the others wait again.

        After an interruption in its midst it may be called a second time.
        """
        turn = head.leads
        if turn is None:
            return
        turn.settle()
        for call in turn.taken:
            if not call.is_done and (turn.suspects or not call.is_skipped):
                call.forget()
            call.turn = None  # last: from here on another transaction may take it
        if head.is_done and head.answered is not None:
            head.answered.notify()  # first, as it has come first
        self._answer([call for call in turn.taken if call.is_done and call is not head])
        self._count(turn)
        head.leads = None

    def _count(self, turn: Turn) -> None:
        """Count what the failures of a transaction have cost, and what it has answered."""
        key, queue = turn.head.key, turn.head.queue
        done = sum(call.is_done for call in turn.taken)
        left = 0 if turn.refused else max(queue.suspects - done, 0)
        queue.suspects = turn.suspects or left
        points = self._points.get(key, 0) + _RAISED * turn.raised + _REFUSED * turn.refused - done
        if points <= 0:
            self._points.pop(key, None)
            return
        if len(self._points) > _REMEMBERED:
            self._points.clear()
        self._points[key] = min(points, _MOST)


def new_call(given: tuple[Any, ...], loop: asyncio.AbstractEventLoop | None = None) -> Call:
    """Return the call of :meth:`DocumentGate.run` with these arguments.

    :param loop: that of the caller, which is a task.
    """
    session_factory, entity, ident, function, lock_timeout, version, checkout = given
    name = "the function of gate.run()" if loop is None else "the function of gate.async_run()"
    check_function(
        *(name, function, "of the session and the document"),
        arguments=2,
        instead="gate.async_run()" if loop is None else "",
    )
    if not callable(session_factory) or hasattr(session_factory, "registry"):
        raise TypeError(
            f"gate.run() needs a factory of new sessions, such as a sessionmaker, not {session_factory!r}"
        )
    mapper = mapper_of(entity)
    document = document_key(mapper, identity_of(mapper, ident))
    seconds = None
    if lock_timeout is not None:
        seconds = check_wait(LockOptions.ForUpdate, lock_timeout)[1] or 0.0
    return Call(
        key=(CombinedCommits, loop, session_factory, document),
        shared=False,
        next_may_follow=False,
        session_factory=session_factory,
        entity=entity,
        ident=ident,
        function=partial(call_checked, name, loop is not None, function),
        seconds=seconds,
        version=version,
        checkout=checkout,
        is_task=loop is not None,
    )
