"""The calls of gate.run() that wait for one document, and who of them runs them all.

The first caller of a document's queue is its head.  It locks the document, runs the functions that
wait, in order of arrival, and commits once.  Then the next caller that waits is the head.

A function may call gate.run() for another document, and wait there while its own queue waits for it.
No server sees such a wait, so a circle of them is looked for here, before each wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar

from sqlalchemy.util import greenlet_spawn

from ...core.documents import document_key, identity_of, mapper_of
from ...core.lock_info import DocumentKey
from ...errors import DeadlockDetected, LockMisuse, LockNotAvailable
from ...options import LockOptions, LockTimeout, check_wait
from .combined_batch import Batch, Call, Place
from .mutex import Mutex
from .wakeup import Wakeup, observed_wait


class CombinedQueue:
    """The calls for one document, from one session factory and, of tasks, one event loop.

    :ivar waiting: the calls whose functions have not begun.
    :ivar head: the call that runs what waits; None: nothing does.
    :ivar taken: the calls of the head's transaction, of which nobody was notified yet.
    """

    def __init__(self, key: Hashable, place: Place) -> None:
        self.key, self.place = key, place
        self.waiting: deque[Call] = deque()
        self.head: Call | None = None
        self.taken: list[Call] = []


class _Turn:
    """One transaction of a queue; a task that a function has started may outlive it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.is_over = False


_running: ContextVar[tuple[_Turn, ...]] = ContextVar("sa_doclock.combined", default=())
"""The turns whose functions this thread or task is in, the outermost first."""


class CombinedCommits:
    """The queues of one gate.

    :param most: the number of functions in one transaction.
    :ivar waits_for: by document and call, a place that the function waits for now, behind its own.
    """

    # Of all gates, since a circle of waits may go through several, and through several factories.
    # Threads: read and changed under the mutex.
    waits_for: ClassVar[dict[DocumentKey, dict[Call, tuple[Place, Place]]]] = {}
    mutex = Mutex()

    def __init__(self, most: int) -> None:
        self._most = most
        self._queues: dict[Hashable, CombinedQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """The number of calls whose functions have not begun."""
        queues = self._queues
        return self.mutex.call(lambda: sum(len(one.waiting) for one in queues.values()))

    def run(self, call: Call) -> Any:
        """See :meth:`DocumentGate.run`."""
        call.wakeup = wakeup = Wakeup()
        key = call.session_factory, call.place.document
        with self._entered(key, call) as queue:
            if queue.head is not call:
                with observed_wait():
                    wakeup.wait(call.left())
                    if not call.notified and not self._withdraw(queue, call):
                        wakeup.wait(None)  # its function runs: the answer comes
            if queue.head is call:
                self._run_batch(queue, call)
        return call.result()

    async def async_run(self, call: Call) -> Any:
        """See :meth:`DocumentGate.async_run`."""
        loop = asyncio.get_running_loop()
        call.answer = answer = loop.create_future()
        key = loop, call.session_factory, call.place.document
        with self._entered(key, call) as queue:
            if queue.head is call:
                self._start_task(queue, call)
            with observed_wait():
                await asyncio.wait([answer], timeout=call.left())
                if not answer.done() and not self._withdraw(queue, call):
                    await asyncio.wait([answer])
        return call.result()

    def _start_task(self, queue: CombinedQueue, head: Call) -> None:
        """Run the batch in a task of its own: the cancellation of a caller is not the others'."""
        batch = greenlet_spawn(self._run_batch, queue, head)
        task = head.context.run(asyncio.get_running_loop().create_task, batch)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Of a task that was cancelled before its first step, nothing has run.
        task.add_done_callback(lambda _: self._end_turn(queue, head))

    @contextmanager
    def _entered(self, key: Hashable, call: Call) -> Iterator[CombinedQueue]:
        """Enter the queue, and yield it; the first caller is its head."""
        outer = [one.place for one in _running.get() if not one.is_over]
        if any(one.document == call.place.document for one in outer):
            raise LockMisuse(
                f"{call.label} is locked by the gate.run() that this function runs in, and which "
                "waits for the function; use the document that the function was given"
            )
        queue = CombinedQueue(key, call.place)

        def enter() -> None:
            nonlocal queue  # an interruption may come as soon as it waits there
            queue = self._queues.setdefault(key, queue)
            self._enter(queue, call, outer)

        try:
            self.mutex.call(enter)
            yield queue
        except BaseException:
            self._leave(queue, call)
            raise
        finally:
            self.mutex.run(partial(self._forget_wait, call, outer))

    def _forget_wait(self, call: Call, outer: Sequence[Place]) -> None:
        for document, _ in outer:
            self.waits_for.get(document, {}).pop(call, None)
            if not self.waits_for.get(document):
                self.waits_for.pop(document, None)

    def _enter(self, queue: CombinedQueue, call: Call, outer: Sequence[Place]) -> None:
        """Have the call, which comes out of functions of the outer documents, wait in this queue.

        :raises DeadlockDetected: functions of its document wait for the outer ones.
        """
        if self._reaches(call.place, outer):
            raise call.named(
                DeadlockDetected(
                    "its gate.run() waits for a function that waits for this caller's; run the whole "
                    "transaction again, and take the documents in one order"
                )
            )
        queue.waiting.append(call)
        queue.head = queue.head or call
        for one in outer:
            self.waits_for.setdefault(one.document, {})[call] = one, call.place

    def _reaches(self, place: Place, others: Sequence[Place]) -> bool:
        """Return whether functions of this place wait for one of these, or for one that does."""
        waits = self.waits_for.get(place.document, {}).values()
        return any(map(place.may_be, others)) or any(
            self._reaches(to, others) for waiting, to in waits if place.may_be(waiting)
        )

    def _withdraw(self, queue: CombinedQueue, call: Call) -> bool:
        """Take a call out whose time is over; return False if its function runs already."""
        if not self.mutex.call(lambda: queue.head is not call and _remove(queue, call)):
            return False
        call.refuse(_late(call))
        return True

    def _leave(self, queue: CombinedQueue, call: Call) -> None:
        """Give up a call whose caller was interrupted or cancelled, or is garbage."""
        self.mutex.run(partial(_remove, queue, call))
        if call.answer is None:  # else its task, if it has one, goes on
            self._end_turn(queue, call)

    def _run_batch(self, queue: CombinedQueue, head: Call) -> None:
        """Run what waits, as far as it fits into one transaction; then the next one is the head."""
        turn = _Turn(queue.place)
        try:
            behind = self.mutex.call(lambda: [*queue.waiting])
            batch = Batch(head, queue.taken, lambda: _running.set((*_running.get(), turn)))
            batch.run(self._calls(queue))
            if isinstance(head.error, LockNotAvailable) and not (queue.taken or head.is_limited):
                self._refuse_late(queue, behind)
        finally:
            turn.is_over = True
            self._end_turn(queue, head)

    def _calls(self, queue: CombinedQueue) -> Iterator[Call]:
        """Take the calls in order of arrival, also those that come while others run."""
        for _ in range(self._most):
            call = self.mutex.call(partial(_take_first, queue))
            if call is None:
                return
            yield call

    def _refuse_late(self, queue: CombinedQueue, calls: Sequence[Call]) -> None:
        """Refuse the calls without a limit of their own: they have waited for as long as the head."""

        def refuse() -> None:
            for call in calls:
                if call in queue.waiting and not call.is_limited:
                    call.refuse(_late(call))
                    queue.taken.append(call)
                    queue.waiting.remove(call)

        self.mutex.call(refuse)

    def _end_turn(self, queue: CombinedQueue, head: Call) -> None:
        """Notify the callers whose functions were taken, and the next one that it is the head.

        A second time it only notifies the next one again, so that an interruption may come in the
        midst of the first.
        """
        ended: list[tuple[bool, Call | None]] = []
        self.mutex.run(lambda: ended.append((self._pass_on(queue, head), queue.head)))
        # Of a garbage collection it may be empty: whoever follows is garbage too.
        ends, following = ended[0] if ended else (False, None)
        if following is None:
            return
        if following.answer is None:
            following.notify()
        elif ends:  # a task is not interrupted between these lines, and must not be started twice
            self._start_task(queue, following)

    def _pass_on(self, queue: CombinedQueue, head: Call) -> bool:
        """Answer the calls of the head, if it is the head still, and return whether it was."""
        if queue.head is not head:
            return False
        for call in (*queue.taken, head):
            call.notify()
            if call in queue.waiting:
                queue.waiting.remove(call)
        queue.taken = []
        queue.head = queue.waiting[0] if queue.waiting else None
        if queue.head is None and self._queues.get(queue.key) is queue:
            del self._queues[queue.key]
        return True


def _take_first(queue: CombinedQueue) -> Call | None:
    """Take the call that has waited longest; None: nobody waits."""
    if not queue.waiting:
        return None
    call = queue.waiting[0]
    queue.taken.append(call)  # first: an interruption must not lose it
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
    place = Place(document, _database_of(session_factory))
    return Call(session_factory, entity, ident, place, function, seconds)


def _database_of(session_factory: Any) -> Hashable:
    """Return the database of a sessionmaker with an engine; None: nobody knows before it makes a session."""
    options: Any = getattr(session_factory, "kw", {})
    url = None if options.get("binds") else getattr(options.get("bind"), "url", None)
    return None if url is None else (url.host, url.port, url.database)


def _late(call: Call) -> LockNotAvailable:
    return call.named(LockNotAvailable("others have the document; try again later, or wait longer"))
