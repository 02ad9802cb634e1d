"""audit(): a block in which every Session and Engine of the process is watched; explore_finding() replays a finding."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from os import sep
from threading import Event, Thread
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.orm import Mapper, QueryableAttribute, Session

from ...session import LockingSession
from ..exploration import Exploration, explore
from .findings import CODES, AuditFinding, sarif_of, table_of
from .inserts import InsertRace
from .listeners import Listeners
from .lock_order import LockOrder
from .places import is_of_tests
from .rules import (
    HOLD_LIMIT,
    DetailWithoutHeader,
    LockWithoutEffect,
    LongHold,
    LostUpdate,
    Rule,
    StaleAfterLock,
)
from .watched import Watched

_EVENTS: Final[Mapping[Any, Sequence[str]]] = {
    Engine: (
        *("begin", "begin_twophase", "commit", "commit_twophase", "rollback", "rollback_twophase"),
        *("savepoint", "release_savepoint", "rollback_savepoint"),
        *("before_cursor_execute", "after_cursor_execute"),
    ),
    Session: (
        *("after_begin", "after_commit", "after_transaction_end"),
        *("before_flush", "after_flush", "transient_to_pending"),
    ),
    LockingSession: ("lock_acquired",),
    Mapper: ("load", "refresh", "after_insert", "after_update", "after_delete"),
    QueryableAttribute: ("set",),
}
_SAMPLE: Final = 0.02  # seconds
_OF_STATES: Final = (Mapper, QueryableAttribute)


class Audit:
    """The findings of a run, which grow while it is watched.

    An audit keeps no object, session or connection alive, and forgets the rows of a transaction with
    it.  It keeps at most 10,000 rows of one transaction, 20,000 pairs of rows in the order in which
    they were locked, and 2,000 different things of each code; ``left_out`` counts what had no room.
    """

    def __init__(self, *, hold_limit: float = HOLD_LIMIT, tests_in: str | None = None) -> None:
        """Create an audit that watches nothing yet.

        :param tests_in: the folder of a project whose test suite is run: lines of its tests are alone.
        """
        self._rules: tuple[Rule, ...] = (
            *(LostUpdate(), DetailWithoutHeader(), LockOrder(), LockWithoutEffect()),
            *(StaleAfterLock(), InsertRace(), LongHold(hold_limit)),
        )
        self._hold_limit = hold_limit
        if tests_in is not None:
            for rule in self._rules:
                rule.is_of_tests = lambda file: is_of_tests(file.removeprefix(f"{tests_in}{sep}"))
        self._watched = Watched(self._rules)

    @property
    def findings(self) -> list[AuditFinding]:
        """The findings that have a place: errors first, then by code, the most frequent first."""
        codes = list(CODES)
        found = [one for rule in self._rules for one in rule.findings() if one.sites]
        return sorted(found, key=lambda one: (one.severity, codes.index(one.code), -one.count))

    @property
    def statements(self) -> int:
        """The number of statements that were watched."""
        return self._watched.statements

    @property
    def transactions(self) -> int:
        """The number of transactions that were watched."""
        return self._watched.transactions

    @property
    def left_out(self) -> int:
        """The number of observations that have found no room; 0 in all but very long runs."""
        return self._watched.rows_left_out + sum(rule.left_out for rule in self._rules)

    @property
    def failures(self) -> tuple[int, str]:
        """The number of times that the audit itself has failed, unseen by the program; the first traceback."""
        return self._watched.failures, self._watched.first_failure

    def report(self) -> str:
        """Return the findings as a table, for people."""
        found, left_out, (times, first) = self.findings, self.left_out, self.failures
        lines = [*table_of(found), ""] if found else []
        errors = sum(one.severity == "error" for one in found)
        lines.append(
            f"{errors} errors, {len(found) - errors} warnings in {self.statements} statements of "
            f"{self.transactions} transactions"
        )
        if left_out:
            lines.append(f"{left_out} observations had no room, so findings may be missing")
        if times:
            lines.append(
                f"the audit has failed {times} times, so findings may be missing; the first:"
            )
            lines.append(first)
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the findings as a list of JSON objects, whose members are those of AuditFinding."""
        return json.dumps([asdict(one) for one in self.findings], indent=2)

    def to_sarif(self) -> str:
        """Return the findings as SARIF 2.1.0, which code forges show at the line.

        Files below the current folder are relative to it.
        """
        return sarif_of(self.findings)

    def export(self) -> dict[str, Any]:
        """Return all that was found, in lists, texts and numbers, for ``merge()`` in another process."""
        watched = self._watched
        return {
            "rules": {rule.code: rule.export() for rule in self._rules},
            "counts": [watched.statements, watched.transactions, watched.rows_left_out],
            "failures": [watched.failures, watched.first_failure],
        }

    def merge(self, exported: dict[str, Any]) -> None:
        """Add what an audit in another process has found.

        A cycle of locks that only both together show is possible, not certain: rows of two processes
        may be of two databases.
        """
        for rule in self._rules:
            rule.merge(exported["rules"][rule.code])
        watched = self._watched
        statements, transactions, rows = exported["counts"]
        watched.statements += statements
        watched.transactions += transactions
        watched.rows_left_out += rows
        failures, first = exported["failures"]
        watched.failures += failures
        watched.first_failure = watched.first_failure or first

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch in the block."""
        listeners = list(self._listeners())
        for target, name, listener, options in listeners:
            event.listen(target, name, listener, **options)
        ended = Event()
        sampler = Thread(target=self._sample, args=(ended,), name="sa_doclock audit", daemon=True)
        sampler.start()
        try:
            yield
        finally:
            ended.set()
            sampler.join()
            for target, name, listener, _ in listeners:
                event.remove(target, name, listener)

    def _sample(self, ended: Event) -> None:
        """Look from time to time which transactions wait, and where."""
        note = self._watched.guarded(lambda: self._watched.note_waiting(self._hold_limit))
        while not ended.wait(max(self._hold_limit / 2, _SAMPLE)):
            note()

    def _listeners(self) -> Iterator[tuple[Any, str, Any, dict[str, bool]]]:
        listeners = Listeners(self._watched)
        for target, names in _EVENTS.items():
            options = {"raw": True} if target in _OF_STATES else {}
            for name in names:
                yield target, name, self._watched.guarded(getattr(listeners, name)), options
        # Not guarded as a whole: it executes the program's statement.
        yield Session, "do_orm_execute", listeners.do_orm_execute, {}


@contextmanager
def audit(*, hold_limit: float = HOLD_LIMIT) -> Iterator[Audit]:
    """Watch every Session and Engine of this process in the block, and find what lacks a lock.

    Sync or async, of whatever class, ours or not.  No model is changed and nothing is sent.  The
    context manager yields an :class:`Audit`, whose findings can be read in the block and afterwards.
    A transaction counts when it ends.  What is seen is what the block executes: an audit of code
    that does not run finds nothing in it.

    :param hold_limit: seconds that a transaction may be open, with locks or without, while no
        statement runs.
    """
    found = Audit(hold_limit=hold_limit)
    with found.watching():
        yield found


def explore_finding(
    finding: AuditFinding,
    first: Callable[[], Any],
    second: Callable[[], Any] | None = None,
    *,
    before: Callable[[], Any],
    invariant: Callable[..., Any],
    orders: int = 1000,
) -> Exploration:
    """Run the functions of a finding in all orders of their statements, as :func:`explore` does.

    An audit knows the lines of a finding, but no arguments for them.  So the functions are the
    caller's, and the exploration is audited: if it does not meet the finding again, at the same
    lines, it is about something else, and that is an error.

    :param finding: of an :func:`audit` of this program, unchanged since.  After the cure it is not
        met any more: then give the functions to :func:`explore`.
    :param first: a function or coroutine function without arguments, that executes the finding's lines.
    :param second: the other one; by default the first once more.
    :raises ValueError: the finding was not met.
    :raises TimeoutError: as :func:`explore` says of this and of the other parameters.
    """
    with audit() as again:
        explored = explore(
            first, second or first, before=before, invariant=invariant, orders=orders
        )
    if not any((one.code, one.sites) == (finding.code, finding.sites) for one in again.findings):
        raise ValueError(
            f"the functions do not execute the lines of this {finding.code}: "
            f"{', '.join(finding.sites)}"
        )
    return explored
