"""The search for orders, and the statement errors that it notes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any, cast

import pytest
from sqlalchemy import Connection
from sqlalchemy.engine import ExceptionContext

from doclock_audit.exploration.listeners import Listeners
from doclock_audit.exploration.search import Search
from sa_doclock.testing.scheduling import (
    FIRST,
    SECOND,
    Access,
    Accesses,
    Diverged,
    Mode,
    TransactionAccesses,
    conflict,
)
from sa_doclock.testing.scheduling.accesses import Access as ListenersAccess
from sa_doclock.testing.scheduling.accesses import Accesses as ListenersAccesses
from sa_doclock.testing.scheduling.accesses import Mode as ListenersMode
from sa_doclock.testing.scheduling.accesses import (
    TransactionAccesses as ListenersTransactionAccesses,
)
from sa_doclock.testing.scheduling.participant import Participant, current_participant
from sa_doclock.testing.scheduling.participant import Step as ListenersStep

# --------------------------------------------------------------------------------------------------
# The search runs each distinct order once, as many as brute force finds. Needs no database.

Step = tuple[str, str]  # ("read" | "lock" | "write" | "end", row)
MODES = {"read": Mode.SNAPSHOT_READ, "lock": Mode.LOCK, "write": Mode.WRITE}
END: Step = ("end", "")


@dataclass
class Function:
    """A function of the model: its steps, its locked rows, and the versions it saw."""

    steps: list[Step]
    transaction: TransactionAccesses = field(default_factory=TransactionAccesses)
    locked: set[str] = field(default_factory=set)
    written: dict[str, int] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)
    waits_for: str | None = None

    def accesses(self) -> Accesses:
        kind, row = self.steps[0]
        if kind == "end":
            return self.transaction.ended()
        return self.transaction.new(frozenset({Access(MODES[kind], "rows", (row,))}))


class Model:
    """Two functions on a database of row locks and committed reads, where a deadlock ends one."""

    def __init__(self, programs: Sequence[Sequence[Step]]) -> None:
        self.functions = {
            number: Function(list(steps))
            for number, steps in zip((FIRST, SECOND), programs, strict=True)
        }
        self.stored = {"x": 0, "y": 0}

    def ready(self) -> dict[int, Accesses]:
        return {
            number: one.accesses()
            for number, one in self.functions.items()
            if one.steps and one.waits_for is None
        }

    def go(self, number: int) -> Accesses:
        """Send one step; return its accesses."""
        one, other = self.functions[number], self.functions[3 - number]
        accesses = one.accesses()
        kind, row = one.steps[0]
        if kind in ("lock", "write") and row in other.locked:
            if other.waits_for is not None:  # a deadlock: this function is the victim
                accesses |= one.transaction.ended()
                one.seen.append("deadlock")
                one.steps.clear()
                self._release(one, other)
                return accesses
            one.waits_for = row
            return accesses
        self._finish(number)
        return accesses

    def _finish(self, number: int) -> None:
        one, other = self.functions[number], self.functions[3 - number]
        accesses = one.accesses()
        kind, row = one.steps.pop(0)
        if kind == "end":
            self.stored.update(one.written)
            self._release(one, other)
            return
        one.transaction.add(accesses)
        value = one.written.get(row, self.stored[row])
        one.seen.append(value)
        if kind != "read":
            one.locked.add(row)
        if kind == "write":
            one.written[row] = value * 10 + number

    def _release(self, one: Function, other: Function) -> None:
        one.locked.clear()
        one.written.clear()
        one.transaction = TransactionAccesses()
        if other.waits_for is not None:
            other.waits_for = None
            self._finish(next(key for key, value in self.functions.items() if value is other))

    @property
    def outcome(self) -> tuple[object, ...]:
        return (*self.stored.items(), *(tuple(one.seen) for one in self.functions.values()))


@dataclass
class Run:
    order: str
    outcome: tuple[object, ...]
    trace: frozenset[object]


def all_runs(programs: Sequence[Sequence[Step]], *, reduce: bool) -> Iterator[Run]:
    search = Search(reduce=reduce)
    while True:
        model, depth, done = Model(programs), 0, []
        while ready := model.ready():
            chosen = search.choose(depth, ready, dict.fromkeys(ready, ""))
            accesses = model.go(chosen)
            search.note(depth, accesses)
            done.append((chosen, accesses, frozenset(ready)))
            depth += 1
        search.end()
        yield Run("".join(str(one) for one, *_ in done), model.outcome, trace_of(done))
        if not search.next():
            return


def trace_of(done: list[tuple[int, Accesses, frozenset[int]]]) -> frozenset[object]:
    """Return the part that all equal orders share: the order of the conflicting steps."""
    count = {FIRST: 0, SECOND: 0}
    steps: list[tuple[int, int, Accesses]] = []
    for chosen, accesses, _ in done:
        steps.append((chosen, count[chosen], accesses))
        count[chosen] += 1
    return frozenset(
        (earlier[:2], later[:2])
        for index, later in enumerate(steps)
        for earlier in steps[:index]
        if earlier[0] != later[0] and conflict(earlier[2], later[2])
    )


def transactions(generator: random.Random) -> list[Step]:
    steps: list[Step] = []
    for _ in range(generator.randint(1, 2)):
        kinds = generator.choices(("read", "lock", "write"), k=generator.randint(1, 3))
        steps += [(kind, generator.choice("xy")) for kind in kinds]
        steps.append(END)
    return steps


LOST_UPDATE: list[Step] = [("read", "x"), ("write", "x"), END]
LOCKED: list[Step] = [("lock", "x"), ("write", "x"), END]


def test_all_orders_without_reduction() -> None:
    reads: list[Step] = [("read", "x")] * 3
    assert len(list(all_runs([reads, reads], reduce=False))) == comb(6, 3)
    assert len(list(all_runs([reads, reads], reduce=True))) == 1


@pytest.mark.parametrize(("steps", "orders"), [(LOST_UPDATE, 6), (LOCKED, 4)])
def test_the_orders_of_two_equal_functions(steps: list[Step], orders: int) -> None:
    assert len(list(all_runs([steps, steps], reduce=True))) == orders


def test_rows_that_they_do_not_share() -> None:
    other = [(kind, "y") if row else (kind, row) for kind, row in LOCKED]
    assert len(list(all_runs([LOCKED, other], reduce=True))) == 1


def test_two_steps_that_conflict_are_run_in_both_orders() -> None:
    search = Search()
    write: Accesses = frozenset({Access(Mode.WRITE)})
    both = {FIRST: write, SECOND: write}
    assert search.choose(0, both, {FIRST: "a", SECOND: "b"}) == FIRST
    search.note(0, write)
    assert search.choose(1, {SECOND: write}, {SECOND: "b"}) == SECOND
    search.note(1, write)
    search.end()
    assert search.next()
    assert search.choose(0, both, {FIRST: "a", SECOND: "b"}) == SECOND
    search.note(0, write)
    assert search.choose(1, {FIRST: write}, {FIRST: "a"}) == FIRST
    search.note(1, write)
    search.end()
    assert not search.next()


@pytest.mark.parametrize(
    ("ready", "label"), [({FIRST}, "other"), ({SECOND}, "a")], ids=["statement", "function"]
)
def test_a_run_that_does_not_begin_as_the_one_before_is_noticed(
    ready: set[int], label: str
) -> None:
    write: Accesses = frozenset({Access(Mode.WRITE)})
    search = Search()
    for depth, ready_then in enumerate(({FIRST, SECOND}, {FIRST, SECOND}, {SECOND})):
        search.choose(depth, dict.fromkeys(ready_then, write), dict.fromkeys(ready_then, "a"))
        search.note(depth, write)
    search.end()
    assert search.next()
    with pytest.raises(Diverged):
        search.choose(0, dict.fromkeys(ready, write), dict.fromkeys(ready, label))


SLOW = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", [0, pytest.param(100, marks=SLOW)])
def test_as_many_orders_as_brute_force_and_the_same_outcomes(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + (25 if first_seed == 0 else 1000)):
        compare(seed)


def compare(seed: int) -> None:
    generator = random.Random(seed)  # not for secrets
    programs = [transactions(generator), transactions(generator)]
    every = list(all_runs(programs, reduce=False))
    chosen = list(all_runs(programs, reduce=True))
    assert len({run.order for run in every}) == len(every)
    assert {run.outcome for run in chosen} == {run.outcome for run in every}
    traces = {run.trace for run in every}
    assert {run.trace for run in chosen} == traces
    assert len(chosen) == len(traces), programs


# --------------------------------------------------------------------------------------------------
# How an exploration records the error of a statement.

ROW = ListenersAccess(ListenersMode.LOCK, "orders", "1")
DRIVER, WRAPPED = ValueError("of the driver"), KeyError("of SQLAlchemy")


class Engines:
    """The facts of an engine that reports this error as a deadlock."""

    def is_deadlock(self, _connection: object, error: object) -> bool:
        return error is DRIVER


class Context:
    """The error, as SQLAlchemy reports it."""

    def __init__(self, *, connected: bool, wrapped: BaseException | None = WRAPPED) -> None:
        self.connection = cast("Connection", object()) if connected else None
        self.original_exception: BaseException = DRIVER
        self.sqlalchemy_exception = wrapped


@pytest.fixture
def participant() -> Iterator[Participant]:
    """Return a function whose transaction locked a row in an earlier step."""
    participant = Participant(1)
    participant.step = ListenersStep(1, "UPDATE orders", "", 7)
    transaction = participant.transactions[7] = ListenersTransactionAccesses(7)
    transaction.add(frozenset({ROW}))
    current_participant.set(participant)
    yield participant
    current_participant.set(None)


def on_error(context: Context) -> None:
    listeners = Listeners(cast("Any", Engines()), cast("Any", None))
    listeners._on_error(cast("ExceptionContext", context))


def ended(row: ListenersAccess) -> ListenersAccesses:
    transaction = ListenersTransactionAccesses()
    transaction.add(frozenset({row}))
    return transaction.ended()


def test_an_error_ends_what_the_transaction_has_done(participant: Participant) -> None:
    on_error(Context(connected=True))
    step = participant.step
    assert step is not None
    assert (step.error, step.is_deadlock, step.accesses) == (WRAPPED, True, ended(ROW))
    # The locks might be gone: locking the row again is a new access.
    assert participant.transactions[7].new(frozenset({ROW})) == {ROW}


def test_accesses_of_the_step_itself_stay(participant: Participant) -> None:
    other = ListenersAccess(ListenersMode.WRITE, "lines", "2")
    assert participant.step is not None
    participant.step.accesses = frozenset({other})
    on_error(Context(connected=True))
    assert participant.step.accesses == {other} | ended(ROW)


def test_an_error_without_a_connection_is_no_deadlock(participant: Participant) -> None:
    on_error(Context(connected=False, wrapped=None))
    assert participant.step is not None
    assert (participant.step.error, participant.step.is_deadlock) == (DRIVER, False)


def test_an_error_in_another_transaction_ends_nothing(participant: Participant) -> None:
    assert participant.step is not None
    participant.step.transaction = 8
    on_error(Context(connected=True))
    assert participant.step.accesses == frozenset()
    assert participant.transactions[7].new(frozenset({ROW})) == frozenset()


def test_an_error_of_nobody_and_of_a_function_without_a_step_is_let_alone(
    participant: Participant,
) -> None:
    participant.step = None
    on_error(Context(connected=True))
    current_participant.set(None)
    on_error(Context(connected=True))
    assert participant.transactions[7].new(frozenset({ROW})) == frozenset()
