"""The runs of an exploration, one after another: data set back, two functions, the invariant."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from ..async_connections import AsyncConnections
from ..concurrent import Outcome
from ..loops import LoopThread
from .anomaly import kind_of
from .engines import EnginesSeen
from .listeners import Listeners
from .participant import Participant, Step, current_participant
from .result import Exploration, Failure
from .scheduler import Function, Scheduler
from .search import FIRST, SECOND, Diverged, Search
from .timeline import short_line, short_sql, timeline_of
from .waits import Waits

Progress = Callable[[str], object]

_SECONDS_TO_PROGRESS: Final = 5.0
_RUN_ALL: Final = "reduce=False runs all orders"


def _print_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")


class Explorer:
    """Runs the orders of two functions.

    :param every_step: also the steps that cannot matter to the other function wait for their turn.
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
        self._progress = _ProgressLines(progress or _print_line)
        self._loop = LoopThread()
        self._engines = EnginesSeen()
        self._listeners = Listeners(self._engines)
        self._connections: AsyncConnections[Participant] = AsyncConnections(current_participant.get)
        self._waits = Waits(self._loop.run_function, patience)
        self._runs = 0
        self._failures: list[Failure] = []
        self._reasons: dict[str, None] = {}  # each once, in their order

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to all engines of the process in this block."""
        self._connections.start()
        self._listeners.start()
        try:
            yield
        finally:
            self._listeners.stop()
            self._connections.stop()
            self._waits.close()
            self._loop.stop(self._connections.close_those_of)

    def run_alone(self) -> None:
        """Call each function alone, which fills the caches of the program and of SQLAlchemy."""
        for number, function in zip((FIRST, SECOND), self._functions, strict=True):
            self._call(self._before)
            current_participant.set(Participant(number))
            try:
                self._call_function(function)
            finally:
                current_participant.set(None)
        self._engines.ask(self._waits.ask)

    def run_all(self, orders: int, search: Search) -> None:
        """Run the orders that the search asks for, up to a number."""
        while True:
            self._run(_BySearch(search))
            self._progress.show(self._runs, len(self._failures))
            if not search.next():
                self._check_relation()
                return
            if self._runs >= orders:
                self._reasons[f"orders={orders} was not enough"] = None
                return

    def _check_relation(self) -> None:
        """Run once more, with the two in turn, and see whether only those wait that should.

        This order is equal to one that was run, if the relation of conflicts is right.  Where every
        order was run, there is nothing to check.
        """
        if self._every_step:
            return
        runs, failures = self._runs, [*self._failures]
        self._run(_InTurn())
        self._runs = runs
        if failures:
            self._failures = failures
        elif self._failures:
            self._reasons[f"an order that seemed equal to another one failed; {_RUN_ALL}"] = None

    def run_one(self, order: str) -> None:
        """Run one order."""
        self._reasons["one order was asked for"] = None
        self._run(_ByOrder(order))

    def result(self) -> Exploration:
        """Return what was found."""
        self._reasons.update(dict.fromkeys(sorted(self._waits.unforced)))
        reasons = "; ".join(self._reasons)
        return Exploration(self._runs, not reasons, tuple(self._failures), reasons)

    def _run(self, choices: _Choices) -> None:
        self._call(self._before)
        scheduler = Scheduler(
            self._waits,
            self._call_function,
            self._listeners.waiting_in_process,
            every_step=self._every_step,
        )
        self._listeners.turns = scheduler
        self._runs += 1
        try:
            outcomes = scheduler.run(self._functions, choices.choose, self._timeout)
            choices.end()
        except Diverged as error:
            self._reasons[f"an order could not be forced: {error}"] = None
            choices.give_up()
            return
        finally:
            self._listeners.turns = None
        if scheduler.surprise is not None and not self._every_step:
            self._reasons[_unexplained(scheduler.surprise)] = None
        self._judge(scheduler, outcomes)

    def _judge(self, scheduler: Scheduler, outcomes: tuple[Outcome, Outcome]) -> None:
        """Ask the invariant, and note a failure."""
        error: Exception | None = None
        try:
            held = self._call(self._invariant, *outcomes[: _parameters(self._invariant)])
        except Exception as raised:  # noqa: BLE001  # the invariant may fail in any way
            held, error = False, raised
        if held is None or held:
            return
        steps = scheduler.chosen
        order = "".join(str(step.function) for step in steps)
        timeline = timeline_of(scheduler.events, outcomes)
        self._failures.append(
            Failure(order, kind_of(scheduler.sent, outcomes), timeline, outcomes, error)
        )

    def _call_function(self, function: Function) -> Any:
        try:
            return self._call(function)
        except BaseException as error:
            participant = current_participant.get()
            explained = self._connections.explain(participant, error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._connections.release(current_participant.get())

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        return self._loop.run(result) if inspect.isawaitable(result) else result


class _Choices(Protocol):
    """Chooses who goes on, in one run."""

    def choose(self, ready: dict[int, Step]) -> int:
        """Return the number of one that can go on."""

    def end(self) -> None:
        """Note that the run has ended."""

    def give_up(self) -> None:
        """Note that it could not be forced."""


class _BySearch:
    """The choices of one run, made by the search."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._steps: list[Step] = []

    def choose(self, ready: dict[int, Step]) -> int:
        self._note()
        labels = {number: short_sql(step.statement) for number, step in ready.items()}
        accesses = {number: step.accesses for number, step in ready.items()}
        chosen = self._search.choose(len(self._steps), accesses, labels)
        self._steps.append(ready[chosen])
        return chosen

    def end(self) -> None:
        self._note()
        self._search.end()

    def give_up(self) -> None:
        self._note()
        self._search.give_up(len(self._steps))

    def _note(self) -> None:
        """Note the steps that have run; an error that came late has added accesses."""
        for depth, step in enumerate(self._steps):
            self._search.note(depth, step.accesses)


class _InTurn:
    """The choices of a run in which each goes one step, where it can."""

    def __init__(self) -> None:
        self._last = SECOND

    def choose(self, ready: dict[int, Step]) -> int:
        self._last = next((one for one in ready if one != self._last), self._last)
        return self._last

    def end(self) -> None:
        """Nothing is left to do."""

    def give_up(self) -> None:
        """Nothing is left to do."""


class _ByOrder(_InTurn):
    """The choices of one run, as an order has them."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self._order = order
        self._done = 0

    def choose(self, ready: dict[int, Step]) -> int:
        wanted = self._order[self._done : self._done + 1]
        self._done += 1
        if not wanted:
            return next(iter(ready))
        if int(wanted) not in ready:
            raise Diverged(f"at turn {self._done} function {wanted} has ended, or waits")
        return int(wanted)


class _ProgressLines:
    """A line of text for every five seconds of a long exploration."""

    def __init__(self, write: Progress) -> None:
        self._write = write
        self._began = self._shown_at = time.monotonic()

    def show(self, runs: int, failures: int) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _SECONDS_TO_PROGRESS:
            self._shown_at = now
            self._write(f"explore: {runs} orders in {now - self._began:.0f} s, {failures} failures")


def _parameters(function: Callable[..., Any]) -> int:
    """Return 2 for an invariant that takes the outcomes, and 0 for one that does not."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of C has no signature
        return 0
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in places and one.default is one.empty]
    return 2 if len(required) == 2 else 0  # noqa: PLR2004  # first and second


def _unexplained(step: Step) -> str:
    return (
        f"{short_sql(step.statement)!r} in {short_line(step.line)} waited for a statement with which it "
        f"seems to have nothing in common; {_RUN_ALL}"
    )
