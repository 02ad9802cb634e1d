"""LockContext: all that one session keeps for its locks, from its options to its queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import ChunkedIteratorResult, MergedResult

from ..documents import mapper_cache
from ..guard import (
    READS_REMEMBERED,
    DmlGuard,
    FlushGuard,
    GuardMode,
    Refusals,
    check_guard_mode,
    line_of_read,
    rows_of_flush,
)
from ..sqlalchemy_internals import merged_results, run_of
from ..transaction import FirstUse, TransactionState, ranks_of
from .loaded import LoadedDocuments
from .wait_policy import WaitPolicy


@dataclass(frozen=True, eq=False, slots=True)
class SessionOptions:
    """The options of :class:`LockingSession`, checked once and shared by all sessions that have them."""

    ranks: Mapping[type[Any], int]
    wait: WaitPolicy
    guard: GuardMode
    guard_tracing: bool


@mapper_cache
def session_options(
    lock_timeout: float | None,
    lock_order: tuple[type[Any], ...],
    guard: GuardMode,
    guard_tracing: bool,
) -> SessionOptions:
    """Return the options of a session.

    For the errors see :class:`LockingSession`.
    """
    check_guard_mode(guard)
    return SessionOptions(ranks_of(lock_order), WaitPolicy(lock_timeout), guard, guard_tracing)


class LockContext(TransactionState):
    """The transaction of one session, and what its locks and writes need beside it."""

    options: SessionOptions

    reads: list[tuple[Any, ...]]
    """The last statements that may have read objects; of each what is in an Execution."""

    adopts_for_update = True
    """True if ``with_for_update()`` is a lock of this session."""

    binds: tuple[Engine | Connection, ...] = ()
    """The values of ``Session(binds=...)``, of ``bind_mapper()`` and of ``bind_table()``."""

    added = False
    """True if an object was ever added to the session."""

    loaded: LoadedDocuments | None = None
    """The objects of documents in the session, from the first lock on that finds some."""

    # What most sessions have no use for is made at its first use.

    def loaded_documents(self) -> LoadedDocuments:
        """Return the same, made where it is not there yet."""
        if self.loaded is None:
            self.loaded = LoadedDocuments(self.session(), self.ledger)
        return self.loaded

    def note_read(self, above: int, result: Any) -> None:
        """Note the execution of a statement, if it may have read objects.

        :param above: what ``run_before()`` has returned before it.
        """
        # A Core statement has a Result of another type.
        if type(result) is ChunkedIteratorResult:
            reads, ledger = self.reads, self.ledger
            try:
                last, sql = run_of(result), result.raw.context.compiled.string  # type: ignore[union-attr]
            except AttributeError:  # a listener of the program has made the result
                return
            line = line_of_read() if self.options.guard_tracing else None
            reads.append((above, last, sql, ledger.new is None, not ledger.held, line))
            if len(reads) > READS_REMEMBERED:
                del reads[: READS_REMEMBERED // 2]
        elif type(result) is MergedResult:  # of a sharded session
            for one in merged_results(result):
                self.note_read(above, one)

    def forget_objects(self) -> None:
        """Forget what is known of the objects in the session, which has none any more."""
        self.loaded = None
        self.reads.clear()

    @FirstUse
    def refusals(self) -> Refusals:
        """The refusals of writes without a lock."""
        report = self.instrumentation.report_unlocked_write
        return Refusals(self.session(), self.ledger, self.options.guard, self.reads, report)

    @FirstUse
    def guard(self) -> FlushGuard:
        """The write guard of flushes."""
        return FlushGuard(self.session(), self.refusals)

    def check_flush(self) -> None:
        """Raise UnlockedWrite if the flush would write to a document that is not held ForUpdate."""
        rows = rows_of_flush(self.session())
        if rows or "guard" in vars(self):  # one that has checked rows must forget them
            self.guard.check_flush(rows)

    @FirstUse
    def dml(self) -> DmlGuard:
        """The write guard of INSERT, UPDATE and DELETE statements."""
        return DmlGuard(self.session(), self.guard)
