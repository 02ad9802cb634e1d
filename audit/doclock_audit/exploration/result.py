"""The result of an exploration: its failures, each with an anomaly and a timeline, and whether it
is complete.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Final, NamedTuple

from sa_doclock.errors import DeadlockDetected
from sa_doclock.testing import Outcome
from sa_doclock.testing.instruments import COMMIT
from sa_doclock.testing.scheduling import (
    FIRST,
    GOES_ON,
    OWN_TRANSACTION,
    SECOND,
    WAITS,
    Access,
    Mode,
    Step,
    short_line,
    short_sql,
)

LOST_UPDATE: Final = "lost update"
WRITE_SKEW: Final = "write skew"
READ_SKEW: Final = "read skew"
DEADLOCK: Final = "deadlock"
ERROR: Final = "error"
UNKNOWN: Final = "not known"

ROLLBACK: Final = "ROLLBACK"

_READS: Final = frozenset({Mode.SNAPSHOT_READ, Mode.READ, Mode.SHARE, Mode.LOCK})


class _Use(NamedTuple):
    """A row that a function read or wrote.

    :ivar at: when the function read the row, or when others could first see the write.
    """

    at: int
    access: Access


@dataclass
class _Work:
    reads: list[_Use] = field(default_factory=list)
    writes: list[_Use] = field(default_factory=list)


def kind_of(steps: Sequence[Step], outcomes: Iterable[Outcome]) -> str:
    """Return the anomaly of a run, from its steps in the order of sending."""
    errors = [one.error for one in outcomes if one.error is not None]
    is_deadlock = any(isinstance(one, DeadlockDetected) for one in errors)
    if is_deadlock or any(step.is_deadlock for step in steps):
        return DEADLOCK
    found = _kind_of_work(_work_of(FIRST, steps), _work_of(SECOND, steps))
    return found or (ERROR if errors else UNKNOWN)


def _kind_of_work(one: _Work, other: _Work) -> str | None:
    if _loses(one, other) or _loses(other, one):
        return LOST_UPDATE
    sides = _sides(one, other), _sides(other, one)
    if all(True in before for before in sides):
        return WRITE_SKEW
    if any(len(before) > 1 for before in sides):
        return READ_SKEW
    return None


def _work_of(function: int, steps: Sequence[Step]) -> _Work:
    work = _Work()
    own = [(at, step) for at, step in enumerate(steps) if step.function == function]
    commits = {step.transaction: at for at, step in own if step.statement == COMMIT}
    for at, step in own:
        if step.error is None:
            seen_at = at if step.transaction == OWN_TRANSACTION else commits.get(step.transaction)
            for access in step.rows:
                if access.mode in _READS:
                    work.reads.append(_Use(at, access))
                elif seen_at is not None:  # others could see the write
                    work.writes.append(_Use(seen_at, access))
    return work


def _loses(one: _Work, other: _Work) -> bool:
    """Return whether one function overwrote a change that the other made after the first read the row."""
    return any(
        read.at < theirs.at < write.at
        for write in one.writes
        for theirs in other.writes
        if theirs.access.overlaps(write.access)
        for read in one.reads
        if read.access.overlaps(theirs.access)
    )


def _sides(one: _Work, other: _Work) -> set[bool]:
    """Return whether one function read, before its commit, rows that the other one wrote.

    The set contains both answers if it read some before and some after, and is empty if it read none.
    """
    return {
        read.at < write.at
        for read in one.reads
        for write in other.writes
        if read.access.overlaps(write.access)
    }


def repeats(steps: Sequence[Step]) -> int:
    """Return how often a function got a database error or restarted a transaction.

    A restart is a rolled-back transaction followed by one with the same first statement.
    """
    found = sum(step.error is not None for step in steps)
    first: dict[int, str] = {}  # by transaction
    undone: str | None = None
    for step in steps:
        if step.statement == ROLLBACK:
            undone = first.get(step.transaction)
        elif step.used and step.transaction not in first:
            first[step.transaction] = step.statement
            found += step.statement == undone
            undone = None
    return found


_SHOWN: Final = 3


@dataclass(frozen=True)
class Failure:
    """One order of the statements after which the invariant did not hold.

    :ivar order: pass it as ``order=`` to :func:`explore` to run this order again.  ``"1221"`` means
        one turn of the first function, two of the second, and one of the first.
    :ivar anomaly: ``"lost update"`` (both wrote a row, and one of them read it before the other's
        commit), ``"write skew"`` (each read a row before the other changed it, and they wrote
        different rows), ``"read skew"`` (one read some rows before the other's commit, and some after
        it), ``"deadlock"``, ``"error"`` (a function raised another error), or ``"not known"``.
    :ivar timeline: the run as a table of two columns.
    :ivar outcomes: the results or errors of the two functions.
    :ivar error: the exception of the invariant; None if it returned a false value.
    """

    order: str
    anomaly: str
    timeline: str
    outcomes: tuple[Outcome, Outcome]
    error: Exception | None

    def __str__(self) -> str:
        message = "" if self.error is None or not str(self.error) else f": {self.error}"
        return (
            f"{self.anomaly}{message}\n\n{self.timeline}\n\n"
            f'Run this order again: explore(..., order="{self.order}")'
        )


@dataclass(frozen=True)
class Exploration:
    """The findings of :func:`explore`.

    An invariant that holds in every order proves little if the functions never conflict.  ``waited``
    and ``retried`` show whether they exclude each other, or succeed because they retry.  If both are
    0, the functions never conflict.

    :ivar runs: the number of orders that ran.
    :ivar complete: True if every order of the statements ran, except orders that cannot differ from
        one that ran.
    :ivar failures: the orders after which the invariant did not hold, in the order of running.
    :ivar incomplete_because: the reasons why not every order ran; empty if ``complete`` is True.
    :ivar unseen: the subset of these reasons that concerns statements that explore() did not see or
        did not schedule.
    :ivar waited: the number of orders in which one function waited for the other.
    :ivar retried: the number of orders in which a function got a database error or rolled back,
        tried again, and returned.
    """

    runs: int
    complete: bool
    failures: Sequence[Failure]
    incomplete_because: str = ""
    unseen: str = ""
    waited: int = 0
    retried: int = 0

    def check(self, *, allow_unseen: bool = False) -> None:
        """Raise an error if there is a failure, with the first three timelines.

        Without a failure, a RuntimeWarning reports that not every order ran.

        :param allow_unseen: True: unseen statements cause only a warning.
        :raises AssertionError: the invariant did not hold, or explore() missed statements and so proved
            nothing.
        """
        if self.failures:
            raise AssertionError(str(self)) from self.failures[0].error
        if self.unseen and not allow_unseen:
            raise AssertionError(
                f"explore() does not see all statements of the functions: {self.unseen}. Change the functions, "
                "or accept it with check(allow_unseen=True)"
            )
        if not self.complete:
            warnings.warn(str(self), RuntimeWarning, stacklevel=2)

    def __str__(self) -> str:
        every = "all of them" if self.complete else f"not all: {self.incomplete_because}"
        failed = len(self.failures)
        head = f"the invariant did not hold in {failed} of {self.runs} orders ({every})"
        if self.waited or self.retried:
            head += f"; a function waited for the other in {self.waited} of them, and tried again in {self.retried}"
        else:
            head += "; they never waited for each other, and never tried again"
        shown = "\n\n".join(
            f"{number}. {one}" for number, one in enumerate(self.failures[:_SHOWN], 1)
        )
        return f"{head}\n\n{shown}" if shown else head


_WIDTH: Final = 48
_NAMES: Final = {1: "first", 2: "second"}
_ENDS: Final = frozenset({COMMIT, ROLLBACK})


def timeline_of(events: Sequence[tuple[str, Step]], outcomes: tuple[Outcome, Outcome]) -> str:
    """Return the steps as a table of two columns, with the outcomes at the end."""
    lines = [_row(*_NAMES.values()), _row("-" * _WIDTH, "-" * _WIDTH)]
    waited = {id(step) for kind, step in events if kind == WAITS}
    for kind, step in events:
        text = _cell(kind, step, waited=id(step) in waited)
        if text:
            lines.extend(_cells(step.function, text))
    for function, outcome in zip(_NAMES, outcomes, strict=True):
        lines.extend(_cells(function, [_end(outcome)]))
    return "\n".join(lines)


def _cell(kind: str, step: Step, *, waited: bool) -> list[str]:
    if kind == WAITS:
        return [f"  waits for the {_NAMES[3 - step.function]}"]
    if kind == GOES_ON:
        return [f"  goes on: {short_sql(step.statement)}", *_seen(step)]
    if not step.used and step.statement not in _ENDS:
        return []  # a setting or a savepoint
    where = short_line(step.line)
    lines = [where] if where else []
    values = [f"  with {step.values}"] if step.values else []
    return [*lines, f"  {short_sql(step.statement)}", *values, *([] if waited else _seen(step))]


def _seen(step: Step) -> list[str]:
    if step.error is not None:
        original = getattr(step.error, "orig", None) or step.error
        first_line = str(original).strip().partition("\n")[0]
        return [f"  -> {type(original).__name__}: {first_line}"]
    return [] if step.saw is None else [f"  -> {step.saw}"]


def _end(outcome: Outcome) -> str:
    if outcome.error is None:
        return f"returned {outcome.value!r}"
    text = str(outcome.error).strip().partition("\n")[0]
    return f"raised {type(outcome.error).__name__}: {text}"


def _cells(function: int, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        indent = "    " if line.startswith("  ") else "  "
        for part in wrap(line, _WIDTH, subsequent_indent=indent) or [""]:
            yield _row(part, "") if function == FIRST else _row("", part)


def _row(left: str, right: str) -> str:
    return f"{left:<{_WIDTH}} | {right}".rstrip()
