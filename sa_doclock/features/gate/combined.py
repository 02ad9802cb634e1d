"""The calls of gate.run() that wait for one document, and the one whose caller runs the batch.

The first caller of a document's queue is its head.  It locks the document, runs the waiting
functions in order of arrival, and saves them with one flush and one COMMIT.  It goes on until its own
function is answered; then the next caller that waits is the head.

If a flush fails, the transaction is undone, and half of its functions run again, until one is alone:
the error is its own.  Where functions fail so often that this would take longer than a transaction
each, each gets one, and the next caller waits at the server meanwhile: as without the gate.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from sqlalchemy.util import greenlet_spawn

from ...checkout_info import Checkout
from ...core.documents import document_key, identity_of, mapper_of
from ...errors import LockMisuse, LockNotAvailable
from ...options import LockOptions, LockTimeout, check_wait
from .combined_turn import Call, Turn, interrupted
from .mutex import Mutex
from .wakeup import Wakeup, observed_wait

# What a failure costs, in functions that could have been saved meanwhile: a transaction that is
# undone, or one for each half.
_RAISED: Final = 4
_REFUSED: Final = 20
_ALONE: Final = 64
"""From so many points on each function has a transaction of its own."""
_MOST: Final = 128
_AT_SERVER: Final = 4
"""The most transactions of a queue at once, which wait at the server for each other."""
_REMEMBERED: Final = 1000


class CombinedQueue:
    """The calls for one document, from one session factory and, of tasks, one event loop.

    :ivar waiting: the calls whose functions have to run.
    :ivar head: the call whose caller runs what waits; None: nobody does.
    :ivar suspects: the number of calls at the front of which one made a flush fail.
    :ivar points: what the failures of its functions have cost, less what was answered since.
    :ivar at_server: the number of transactions of which the next head does not wait for the end.
    :ivar overlaps: whether another transaction can wait at the server.
    """

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: deque[Call] = deque()
        self.head: Call | None = None
        self.suspects = self.points = self.at_server = 0
        self.overlaps = True

    def count(self, turn: Turn) -> None:
        """Count what the failures of a turn have cost, and what it has answered."""
        done = sum(call.is_done for call in turn.taken)
        left = 0 if turn.refused else max(self.suspects - done, 0)
        self.suspects = turn.suspects or left
        points = self.points + _RAISED * turn.raised + _REFUSED * turn.refused - done
        self.points = min(max(points, 0), _MOST)


_running: ContextVar[tuple[Turn, ...]] = ContextVar("sa_doclock.combined", default=())
"""The turns whose functions this thread or task is in."""


class CombinedCommits:
    """The queues of one gate.

    :param most: the number of functions in one transaction.
    :param overlaps: the next head may wait at the server.
    """

    def __init__(self, most: int, *, overlaps: bool) -> None:
        self._most, self._overlaps, self.mutex = most, overlaps, Mutex()
        self._queues: dict[Hashable, CombinedQueue] = {}
        self._remembered: OrderedDict[Hashable, CombinedQueue] = OrderedDict()  # with points
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """The number of calls whose functions have not begun."""
        queues = self._queues
        return self.mutex.call(lambda: sum(len(one.waiting) for one in queues.values()))

    def run(self, call: Call) -> Any:
        """See :meth:`DocumentGate.run`."""
        call.wakeup = wakeup = Wakeup()
        with self._entered((call.session_factory, call.document), call) as queue:
            if queue.head is not call:
                with observed_wait():
                    wakeup.wait(call.left())
                    if not call.notified and not self._withdraw(queue, call):
                        wakeup.wait(None)  # its function runs: the answer comes
            self._lead(queue, call)
        return call.result()

    async def async_run(self, call: Call) -> Any:
        """See :meth:`DocumentGate.async_run`."""
        loop = asyncio.get_running_loop()
        call.answer = answer = loop.create_future()
        with self._entered((loop, call.session_factory, call.document), call) as queue:
            if queue.head is call:
                self._start_task(queue, call)
            with observed_wait():
                await asyncio.wait([answer], timeout=call.left())
                if not answer.done() and not self._withdraw(queue, call):
                    await asyncio.wait([answer])
        return call.result()

    def _start_task(self, queue: CombinedQueue, head: Call) -> None:
        """Run the turns in a task of their own: the cancellation of a caller is not the others'."""
        turns = greenlet_spawn(self._lead, queue, head)
        task = head.context.run(asyncio.get_running_loop().create_task, turns)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Of a task that was cancelled before its first step, nothing has run.
        task.add_done_callback(partial(self._give_up, queue, head))

    def _give_up(self, queue: CombinedQueue, head: Call, _: object) -> None:
        if not head.is_done:
            head.finish(head.named(interrupted()))
        self._end_turn(queue, head)

    @contextmanager
    def _entered(self, key: Hashable, call: Call) -> Iterator[CombinedQueue]:
        """Enter the queue, and yield it; the first caller is its head.

        :raises LockMisuse: the caller is a function of gate.run().
        """
        if any(not turn.has_ended for turn in _running.get()):
            raise LockMisuse(
                f"gate.run() of {call.label} was called by a function of gate.run(), which may run "
                "more than once, while this call would save each time; call it when the outer "
                "gate.run() has returned, or lock the second document by the function's session"
            )
        queue = CombinedQueue(key)

        def enter() -> None:
            nonlocal queue  # an interruption may come as soon as it waits there
            queue = self._queues.setdefault(key, self._remembered.pop(key, queue))
            queue.waiting.append(call)
            queue.head = queue.head or call

        try:
            self.mutex.call(enter)
            yield queue
        except BaseException:
            call.is_gone = True
            self.mutex.run(partial(_remove, queue, call))
            if call.answer is None:  # else its task, if it has one, goes on
                self._end_turn(queue, call)
            raise

    def _withdraw(self, queue: CombinedQueue, call: Call) -> bool:
        """Take a call out whose time is over; return False if its function runs already."""
        if not self.mutex.call(lambda: queue.head is not call and _remove(queue, call)):
            return False
        call.finish(_late(call))
        return True

    def _lead(self, queue: CombinedQueue, head: Call) -> None:
        """Run what waits, as long as the call is the head of its queue and has no answer."""
        while queue.head is head:
            head.turn = turn = Turn(head, alone=queue.points >= _ALONE)
            try:
                behind = self.mutex.call(lambda: [*queue.waiting])
                if turn.alone:
                    self._change(queue, partial(_take_first, queue, turn))
                turn.run(
                    self._calls(queue, turn),
                    others_wait=lambda: bool(queue.waiting),
                    before=partial(_running.set, (*_running.get(), turn)),
                )
                turn.settle()
                queue.overlaps = self._overlaps and not turn.locks_database
                if isinstance(head.error, LockNotAvailable) and not turn.taken:
                    self._refuse_late(queue, head, behind)
            finally:
                turn.has_ended = True
                self._end_turn(queue, head)

    def _calls(self, queue: CombinedQueue, turn: Turn) -> Iterator[Call]:
        """Take the calls in order of arrival, also those that come while others run."""
        if turn.alone:
            yield from turn.taken
            return
        for _ in range(max(queue.suspects // 2, 1) if queue.suspects else self._most):
            call = self.mutex.call(partial(_take_first, queue, turn))
            if call is None:
                return
            yield call

    def _refuse_late(self, queue: CombinedQueue, head: Call, calls: Sequence[Call]) -> None:
        """Refuse the calls without a limit of their own: they have waited for as long as the head."""
        if head.seconds is not None:
            return

        def refuse() -> None:
            for call in calls:
                if call is not head and call.seconds is None and _remove(queue, call):
                    call.finish(_late(call))
                    call.notify()

        self.mutex.call(refuse)

    def _end_turn(self, queue: CombinedQueue, head: Call) -> None:
        """Notify the callers that have their answer, and the next one that it is the head.

        A second time it only notifies the next one again, so that an interruption may come in the
        midst of the first.
        """
        self._change(queue, partial(self._end, queue, head))

    def _change(self, queue: CombinedQueue, change: Callable[[], object]) -> None:
        """Change the queue, and notify the next head."""

        def run() -> tuple[bool, Call | None]:
            before = queue.head
            change()
            self._overlap(queue)
            return queue.head is not before, queue.head

        done: list[tuple[bool, Call | None]] = []
        self.mutex.run(lambda: done.append(run()))
        # Of a garbage collection it may be empty: whoever follows is garbage too.
        is_new, head = done[0] if done else (False, None)
        if head is None:
            return
        if head.answer is None:
            head.notify()
        elif is_new:  # a task is not interrupted between these lines, and must not be started twice
            self._start_task(queue, head)

    def _end(self, queue: CombinedQueue, head: Call) -> None:
        turn = head.turn
        if turn is not None:
            turn.settle()
            self._answer(queue, turn)
            queue.at_server -= turn.overlapped
            queue.count(turn)
            head.turn = None
        if queue.head is head and (head.is_done or head.is_gone):
            self._pass_on(queue)

    def _overlap(self, queue: CombinedQueue) -> None:
        """Make the next call the head while the transaction of this one still waits for the lock."""
        turn = None if queue.head is None else queue.head.turn
        if (
            turn is not None
            and turn.alone
            and turn.taken
            and queue.overlaps
            and queue.at_server < _AT_SERVER - 1
        ):
            turn.overlapped = True
            queue.at_server += 1
            self._pass_on(queue)

    def _answer(self, queue: CombinedQueue, turn: Turn) -> None:
        """Notify the callers that have their answer; all others wait again, as they stood."""
        for call in turn.taken:
            if call.is_done:
                call.notify()
        for call in reversed(turn.taken):
            if not (call.is_done or call.is_gone or call in queue.waiting):
                if turn.suspects or not call.is_skipped:
                    call.forget()
                queue.waiting.appendleft(call)

    def _pass_on(self, queue: CombinedQueue) -> None:
        """Make the next call the head."""
        head = queue.head
        if head is not None:
            _remove(queue, head)
            if head.is_done:
                head.notify()
        queue.head = queue.waiting[0] if queue.waiting else None
        if queue.head is None and self._queues.get(queue.key) is queue:
            del self._queues[queue.key]
            if queue.points or queue.at_server:
                self._remembered[queue.key] = queue
                if len(self._remembered) > _REMEMBERED:
                    self._remembered.popitem(last=False)


def _take_first(queue: CombinedQueue, turn: Turn) -> Call | None:
    """Take the call that has waited longest; None: nobody waits."""
    if not queue.waiting:
        return None
    call = queue.waiting[0]
    turn.taken.append(call)  # first: an interruption must not lose it
    queue.waiting.popleft()
    return call


def _remove(queue: CombinedQueue, call: Call) -> bool:
    """Take a call out, and return whether it has waited."""
    if call not in queue.waiting:
        return False
    queue.waiting.remove(call)
    return True


def new_call(
    session_factory: Callable[[], Any],
    entity: type[Any],
    ident: Any,
    function: Callable[[Any, Any], Any],
    lock_timeout: LockTimeout,
    version: Any = None,
    checkout: Checkout | int | None = None,
) -> Call:
    """Return the call of :meth:`DocumentGate.run` with these arguments."""
    if not callable(session_factory) or hasattr(session_factory, "registry"):
        raise TypeError(
            f"gate.run() needs a factory of new sessions, such as a sessionmaker, not {session_factory!r}"
        )
    if not callable(function):
        raise TypeError(f"gate.run() needs a function of session and document, not {function!r}")
    mapper = mapper_of(entity)
    document = document_key(mapper, identity_of(mapper, ident))
    _, seconds = check_wait(LockOptions.ForUpdate, lock_timeout)
    if lock_timeout is not None and seconds is None:
        seconds = 0.0
    given = {"version": version, "checkout": checkout}
    return Call(session_factory, entity, ident, document, function, seconds, given)


def _late(call: Call) -> LockNotAvailable:
    return call.named(LockNotAvailable("others have the document; try again later, or wait longer"))
