"""The result of an exploration: its failures, and whether all orders were run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..outcome import Outcome

_SHOWN: Final = 3


@dataclass(frozen=True)
class Failure:
    """One order of the statements after which the invariant did not hold.

    :ivar order: the argument ``order=`` of :func:`explore` that runs it again: ``"1221"`` for a turn
        of the first function, two of the second, and one of the first.
    :ivar anomaly: ``"lost update"`` (both wrote a row, and one of them had read it before the other's
        commit), ``"write skew"`` (each read a row before the other changed it, and they wrote
        different rows), ``"read skew"`` (one read some rows before the other's commit, and some after
        it), ``"deadlock"``, ``"error"`` (a function has raised another error), or ``"not known"``.
    :ivar timeline: the run as a table of two columns.
    :ivar outcomes: what the two functions have returned or raised.
    :ivar error: what the invariant has raised; None where it has returned a false value.
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

    :ivar runs: the number of orders that were run.
    :ivar complete: every order of the statements was run, less those that cannot differ from one
        that was.
    :ivar failures: the orders after which the invariant did not hold, in the order in which they
        were run.
    :ivar incomplete_because: why not every order was run; empty where ``complete`` is true.
    """

    runs: int
    complete: bool
    failures: Sequence[Failure]
    incomplete_because: str = ""

    def check(self) -> None:
        """Raise an error if there is a failure, with the timelines of the first three.

        Where there is none, and not every order was run, this is a RuntimeWarning.

        :raises AssertionError: the invariant did not hold.
        """
        if self.failures:
            raise AssertionError(str(self)) from self.failures[0].error
        if not self.complete:
            warnings.warn(str(self), RuntimeWarning, stacklevel=2)

    def __str__(self) -> str:
        every = "all of them" if self.complete else f"not all: {self.incomplete_because}"
        failed = len(self.failures)
        head = f"the invariant did not hold in {failed} of {self.runs} orders ({every})"
        shown = "\n\n".join(
            f"{number}. {one}" for number, one in enumerate(self.failures[:_SHOWN], 1)
        )
        return f"{head}\n\n{shown}" if shown else head
