"""explore(): runs two functions in all orders of their statements, one order after another."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from sa_doclock.testing import Outcome
from sa_doclock.testing.instruments import (
    AsyncConnections,
    LoopThread,
    check_function,
    check_functions,
)
from sa_doclock.testing.scheduling import (
    FIRST,
    SECOND,
    WAITS,
    Chooser,
    Diverged,
    Function,
    Participant,
    Scheduler,
    Step,
    Waits,
    current_participant,
    short_line,
    short_sql,
)

from .listeners import EnginesSeen, Listeners
from .result import (
    Exploration,
    Failure,
    kind_of,
    repeats,
    timeline_of,
)
from .search import Search
from .unseen import Unseen

Progress = Callable[[str], object]

_SECONDS_TO_PROGRESS: Final = 5.0
_RUN_ALL: Final = "reduce=False runs all orders"


def explore(
    first: Function,
    second: Function,
    *,
    before: Function,
    invariant: Callable[..., Any],
    orders: int = 1000,
    order: str | None = None,
    reduce: bool = True,
    patience: float = 5.0,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> Exploration:
    """Run two functions repeatedly, each time with another order of their statements.

    All orders run, except orders that cannot differ from an earlier one: the order of two statements
    does not matter if they only read, or share no table and row.  The server reports who waits for a
    lock, so its real locks decide which orders are possible.

    First, each function runs once alone, after ``before()``; an error in this call is raised.
    Errors in a later run, such as a deadlock, are outcomes of the functions.  They are failures only
    if the invariant says so.

    explore() does not schedule statements from other threads, other processes or raw driver
    connections.  The result reports them.

    Example::

        def before():
            with Session.begin() as session:
                session.get_one_entity(Order, 42, LockOptions.ForUpdate).total = 0

        def add_one():
            with Session() as session, session.locked(Order, 42) as order:
                order.total += 1

        def both_are_counted():
            with Session() as session:
                return session.get_one(Order, 42).total == 2

        explore(add_one, add_one, before=before, invariant=both_are_counted).check()

    :param first: a function or coroutine function without arguments that opens its own session.
        Functions run in a thread each, coroutines in a separate event loop.  The same holds for
        ``second``.
    :param before: resets the data before each run, and commits.
    :param invariant: raises AssertionError, or returns a false value other than None, if the data
        are wrong after a run.  If it takes two arguments, they are the two outcomes, each with
        ``value`` and ``error``; it may raise their errors too.
    :param orders: the largest number of orders to run.
    :param order: run only this order, taken from the ``order`` of a failure.
    :param reduce: False: also run orders that seem equal.  Use it if statements access tables that
        they do not name, through a view, a function or a trigger.
    :param patience: if a function sends nothing to the database for this many seconds, explore()
        assumes that it waits for the other function in this process, for a mutex or a connection.
    :param timeout: seconds after which a run that has not ended is an error.
    :param progress: called with a line of text every five seconds; by default the line goes to
        standard error.
    :raises TimeoutError: a run did not end.
    :raises RuntimeError: the invariant itself failed, with an error other than AssertionError.
    :raises ValueError: ``order`` contains something other than 1 and 2.
    """
    check_functions(first=first, second=second, before=before)
    check_function("invariant", invariant, "of the two outcomes, or without arguments")
    if order is not None and not set(order) <= {"1", "2"}:
        raise ValueError(f'order must consist of 1 and 2, such as "1221", not {order!r}')
    if orders < 1:
        raise ValueError(f"orders must be at least 1, not {orders!r}")
    explorer = Explorer(
        (first, second),
        before,
        invariant,
        patience=patience,
        timeout=timeout,
        every_step=not reduce,
        progress=progress,
    )
    with explorer.listening():
        explorer.run_alone()
        if order is None:
            explorer.run_all(orders, Search(reduce=reduce))
        else:
            explorer.run_one(order)
    return explorer.result()


class Explorer:
    """Runs the orders of two functions.

    :param every_step: let even steps that cannot affect the other function wait for their turn.
    """

    def __init__(
        self,
        functions: tuple[Function, Function],
        before: Function,
        invariant: Callable[..., Any],
        *,
        patience: float,
        timeout: float,
        every_step: bool,
        progress: Progress | None,
    ) -> None:
        self._functions, self._before, self._invariant = functions, before, invariant
        self._timeout, self._every_step = timeout, every_step
        self._progress = progress or partial(print, file=sys.stderr)
        self._began = self._shown_at = time.monotonic()
        self._loop = LoopThread()
        self._engines = EnginesSeen()
        self._unseen = Unseen()
        self._listeners = Listeners(self._engines, self._unseen)
        self._connections: AsyncConnections[Participant] = AsyncConnections(current_participant.get)
        self._call_function = partial(self._connections.run, self._loop)
        self._waits = Waits(self._loop.run_function, patience)
        self._runs = self._waited = self._retried = 0
        self._repeats: dict[int, int] = {}  # for each function alone
        self._failures: list[Failure] = []
        self._reasons: dict[str, None] = {}  # each once, in order

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to all engines of the process in this block."""
        with ExitStack() as stack:
            stack.callback(self._loop.stop, self._connections.close_those_of)
            stack.callback(self._waits.servers.close)
            stack.enter_context(self._connections.listening())
            stack.enter_context(self._listeners.listening())
            stack.enter_context(self._unseen.listening())
            yield

    def run_alone(self) -> None:
        """Call each function alone, to fill the caches of the program and of SQLAlchemy."""
        for number, function in zip((FIRST, SECOND), self._functions, strict=True):
            self._loop.call(self._before)
            participant = Participant(number, self._unseen)
            current_participant.set(participant)
            try:
                with self._unseen.watching():
                    self._call_function(function)
            finally:
                current_participant.set(None)
            self._repeats[number] = repeats(participant.steps)
        self._engines.ask(self._waits.servers.ask)

    def run_all(self, orders: int, search: Search) -> None:
        """Run the orders that the search requests, up to a limit."""
        while True:
            forced, steps = self._run(partial(_by_search, search))
            _note(search, steps)
            if forced:
                search.end()
            else:
                search.give_up(len(steps))
            now = time.monotonic()
            if now - self._shown_at >= _SECONDS_TO_PROGRESS:
                self._shown_at = now
                done = f"{self._runs} orders in {now - self._began:.0f} s"
                self._progress(f"explore: {done}, {len(self._failures)} failures")
            if not search.next():
                self._check_relation()
                return
            if self._runs >= orders:
                self._reasons[f"orders={orders} was not enough"] = None
                return

    def _check_relation(self) -> None:
        """Run once more, one function after the other, and check that only the expected waits occur.

        If the table of conflicts is right, this order equals an earlier one.  If every order already ran,
        there is nothing to check.
        """
        if self._every_step:
            return
        counts, failures = (self._runs, self._waited, self._retried), [*self._failures]
        self._run(_in_turn)
        self._runs, self._waited, self._retried = counts
        if failures:
            self._failures = failures
        elif self._failures:
            self._reasons[f"an order that seemed equal to another one failed; {_RUN_ALL}"] = None

    def run_one(self, order: str) -> None:
        """Run this order."""
        self._reasons["only one order was requested"] = None
        self._run(partial(_by_order, order))

    def result(self) -> Exploration:
        """Return the findings."""
        unseen = self._unseen.reasons()
        reasons = "; ".join([*unseen, *self._reasons, *sorted(self._waits.unforced)])
        return Exploration(
            self._runs,
            not reasons,
            tuple(self._failures),
            reasons,
            unseen="; ".join(unseen),
            waited=self._waited,
            retried=self._retried,
        )

    def _run(self, choose: Chooser) -> tuple[bool, Sequence[Step]]:
        """Run once; return whether the order could be forced, and the steps of its turns."""
        self._loop.call(self._before)
        scheduler = Scheduler(
            self._waits, self._call_function, self._unseen, every_step=self._every_step
        )
        self._listeners.turns = scheduler
        self._runs += 1
        try:
            with self._unseen.watching():
                outcomes = scheduler.run(self._functions, choose, self._timeout)
        except Diverged as error:
            self._reasons[f"an order could not be forced: {error}"] = None
            return False, scheduler.chosen
        finally:
            self._listeners.turns = None
        if scheduler.surprise is not None and not self._every_step:
            step = scheduler.surprise
            self._reasons[
                f"{short_sql(step.statement)!r} in {short_line(step.line)} waited for a statement "
                f"that seemed to share no table or row with it; {_RUN_ALL}"
            ] = None
        self._count(scheduler, outcomes)
        self._judge(scheduler, outcomes)
        return True, scheduler.chosen

    def _count(self, scheduler: Scheduler, outcomes: tuple[Outcome, Outcome]) -> None:
        both = scheduler.participants.values()
        for one in both:
            self._unseen.note_run(one)
        self._waited += any(kind == WAITS for kind, _ in scheduler.events)
        self._retried += any(
            outcome.error is None and repeats(one.steps) > self._repeats[one.number]
            for one, outcome in zip(both, outcomes, strict=True)
        )

    def _judge(self, scheduler: Scheduler, outcomes: tuple[Outcome, Outcome]) -> None:
        error: Exception | None = None
        order = "".join(str(step.function) for step in scheduler.chosen)
        try:
            held = self._loop.call(self._invariant, *outcomes[: _parameters(self._invariant)])
        except Exception as raised:
            of_function = any(raised is one.error for one in outcomes)
            if not isinstance(raised, AssertionError) and not of_function:
                raise RuntimeError(
                    f'the invariant failed after order "{order}" with {type(raised).__name__}: {raised}. This says '
                    "nothing about the two functions. If the data are wrong, the invariant must raise "
                    "AssertionError or return False; it may also raise the error of an outcome"
                ) from raised
            held, error = False, raised
        if held is None or held:
            return
        timeline = timeline_of(scheduler.events, outcomes)
        self._failures.append(
            Failure(order, kind_of(scheduler.sent, outcomes), timeline, outcomes, error)
        )


def _by_search(search: Search, ready: dict[int, Step], chosen: Sequence[Step]) -> int:
    _note(search, chosen)
    labels = {number: short_sql(step.statement) for number, step in ready.items()}
    accesses = {number: step.accesses for number, step in ready.items()}
    return search.choose(len(chosen), accesses, labels)


def _note(search: Search, chosen: Sequence[Step]) -> None:
    for depth, step in enumerate(chosen):
        search.note(depth, step.accesses)


def _in_turn(ready: dict[int, Step], chosen: Sequence[Step]) -> int:
    last = chosen[-1].function if chosen else SECOND
    return next((one for one in ready if one != last), last)


def _by_order(order: str, ready: dict[int, Step], chosen: Sequence[Step]) -> int:
    """Return the function that the order names; after the order's end, any function that can run."""
    turn = len(chosen)
    if turn >= len(order):
        return next(iter(ready))
    wanted = int(order[turn])
    if wanted not in ready:
        raise Diverged(f"at turn {turn + 1} function {wanted} has ended, or waits")
    return wanted


def _parameters(function: Callable[..., Any]) -> int:
    """Return 2 for an invariant that takes the outcomes, and 0 for one that does not."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a C function may have no signature
        return 0
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in places and one.default is one.empty]
    return 2 if len(required) == 2 else 0  # noqa: PLR2004  # first and second
