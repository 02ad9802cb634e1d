"""audit(): a block in which every Session and Engine of the process is watched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.orm import Mapper, QueryableAttribute, Session

from ...session import LockingSession
from .detail_without_header import DetailWithoutHeader
from .finding import CODES, AuditFinding
from .lock_order import LockOrder
from .lock_without_effect import LockWithoutEffect
from .long_hold import HOLD_LIMIT, LongHold
from .lost_update import LostUpdate
from .object_events import ObjectEvents
from .report import report_of
from .rule import Rule
from .sarif import sarif_of
from .session_events import SessionEvents
from .stale_after_lock import StaleAfterLock
from .statement_events import StatementEvents
from .watched import Watched

_OF_TRANSACTIONS: Final = ("begin", "commit", "rollback")  # each also of two phases
_OF_STATEMENTS: Final = ("before_cursor_execute", "after_cursor_execute")
_OF_SESSIONS: Final = (
    *("after_begin", "after_commit", "after_transaction_end"),
    "transient_to_pending",
)
_OF_OBJECTS: Final = ("load", "refresh", "after_insert", "after_update", "after_delete")


class Audit:
    """The findings of a run, which grow while it is watched.

    An audit keeps no object, session or connection alive, and forgets the rows of a transaction with
    it.  It keeps at most 10,000 rows of one transaction, 20,000 pairs of rows in the order in which
    they were locked, and 2,000 different things of each code; ``left_out`` counts what had no room.
    """

    def __init__(self, *, hold_limit: float = HOLD_LIMIT) -> None:
        self._rules: tuple[Rule, ...] = (
            *(LostUpdate(), DetailWithoutHeader(), LockOrder()),
            *(LockWithoutEffect(), StaleAfterLock(), LongHold(hold_limit)),
        )
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
        return report_of(
            self.findings, self.statements, self.transactions, self.left_out, self.failures
        )

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
        try:
            yield
        finally:
            for target, name, listener, _ in listeners:
                event.remove(target, name, listener)

    def _listeners(self) -> Iterator[tuple[Any, str, Any, dict[str, bool]]]:
        guarded = self._watched.guarded
        statements = StatementEvents(self._watched)
        sessions, objects = SessionEvents(self._watched), ObjectEvents(self._watched)
        for name in _OF_TRANSACTIONS:
            listener = guarded(getattr(statements, name))
            yield Engine, name, listener, {}
            yield Engine, f"{name}_twophase", listener, {}
        for name in _OF_STATEMENTS:
            yield Engine, name, guarded(getattr(statements, name)), {}
        for name in _OF_SESSIONS:
            yield Session, name, guarded(getattr(sessions, name)), {}
        # Not guarded as a whole: it executes the program's statement.
        yield Session, "do_orm_execute", sessions.do_orm_execute, {}
        for name in _OF_OBJECTS:
            yield Mapper, name, guarded(getattr(objects, name)), {"raw": True}
        yield QueryableAttribute, "set", guarded(objects.set), {"raw": True}
        yield LockingSession, "lock_acquired", guarded(sessions.lock_acquired), {}


@contextmanager
def audit(*, hold_limit: float = HOLD_LIMIT) -> Iterator[Audit]:
    """Watch every Session and Engine of this process in the block, and find what lacks a lock.

    Sync or async, of whatever class, ours or not.  No model is changed and nothing is sent.  The
    context manager yields an :class:`Audit`, whose findings can be read in the block and afterwards.
    A transaction counts when it ends.  What is seen is what the block executes: an audit of code
    that does not run finds nothing in it.

    :param hold_limit: seconds that a transaction may hold locks while no statement runs.
    """
    found = Audit(hold_limit=hold_limit)
    with found.watching():
        yield found
