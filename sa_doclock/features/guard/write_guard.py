"""WriteGuard: how the write guard joins a session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy.orm import Mapper, Session

from ...core.documents import any_declared
from ...core.transaction import Block, FirstUse, LockContext, SessionPart, state_of
from ...options import GuardMode
from .dml import DmlGuard
from .flush import FlushGuard
from .provenance import ReadProvenance
from .refusals import Refusals
from .rows import Write, rows_of_flush
from .writable import WritableDocuments


def guard_of(session: Session | None) -> WriteGuard | None:
    """Return the guard of this session; None where it has none, or there is no session."""
    state = None if session is None else state_of(session)
    return None if state is None else state.parts.find(WriteGuard)


class WriteGuard(SessionPart):
    """The guard of one session.

    :param reads: tells where the session has read a row, where it traces that.
    """

    def __init__(self, state: LockContext, mode: GuardMode, reads: ReadProvenance | None) -> None:
        self.documents = WritableDocuments(state.ledger)
        self.refusals = Refusals(state, self.documents, mode, reads)

    @FirstUse
    def flushes(self) -> FlushGuard:
        """The guard of flushes."""
        return FlushGuard(self.refusals)

    @FirstUse
    def _dml(self) -> DmlGuard:
        """The guard of INSERT, UPDATE and DELETE statements."""
        return DmlGuard(self.refusals, self.flushes)

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Check nothing in this block."""
        with self.refusals.disabled():
            yield

    def before_flush(self, session: Session) -> None:
        """See :class:`SessionPart`.

        :raises UnlockedWrite: it would write to a document that is not held ForUpdate.
        """
        if any_declared():
            self.flushes.check_flush(rows_of_flush(session))

    def around_unguarded(self) -> Block:
        """See :class:`SessionPart`."""
        return self.unguarded()

    def around_dml(
        self, statement: Any, parameters: Any, how: Mapping[str, Any]
    ) -> AbstractContextManager[Callable[[Any], Any]]:
        """See :class:`SessionPart`."""
        return self._dml.statement(statement, parameters, how)

    def around_objects(self, objects: Collection[Any]) -> Block:
        """See :class:`SessionPart`."""
        return self._dml.objects(objects)

    def around_rows(
        self, mapper: Mapper[Any], rows: Sequence[Mapping[str, Any]], *, insert: bool
    ) -> Block:
        """See :class:`SessionPart`."""
        return self._dml.rows(mapper, rows, Write.INSERT if insert else Write.UPDATE)

    def mark(self) -> int:
        """See :class:`SessionPart`."""
        return self.documents.mark()

    def roll_back_to(self, mark: Any) -> None:
        """See :class:`SessionPart`."""
        self.documents.roll_back_to(mark or 0)

    def locks_lost(self) -> None:
        """See :class:`SessionPart`: nobody knows whether the new documents are there."""
        self.documents.roll_back_to(0)

    def ended(self, *, committed: bool) -> None:
        """See :class:`SessionPart`."""
        self.documents.roll_back_to(0)
        if "flushes" in vars(self):
            self.flushes.checked.clear()
