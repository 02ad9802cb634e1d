"""The write guard as a part of each session, and as listener to the rows of documents, and of no others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from threading import Lock
from typing import Any
from weakref import WeakSet, ref

from sqlalchemy import Connection, event
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.interfaces import EXT_CONTINUE

from ...core.documents import any_declared, listen_for_documents, mapper_cache, notify_in_time
from ...core.sqlalchemy_internals import all_mappers, allow_listening
from ...core.transaction import Block, FirstUse, LockContext, SessionPart, state_of
from ...options import GuardMode
from .dml import DmlGuard
from .flush import FlushGuard, guards, rows_to_flush
from .provenance import ReadProvenance
from .refusals import Refusals
from .writes import Write


class WriteGuard(SessionPart):
    """The guard of one session.

    :param reads: tells where the session has read a row, where it traces that.
    """

    def __init__(self, state: LockContext, mode: GuardMode, reads: ReadProvenance | None) -> None:
        self._state, self._mode, self._reads = ref(state), mode, reads  # which has this part

    @FirstUse
    def flushes(self) -> FlushGuard:
        """The guard of flushes, with the refusals of all checks."""
        state = self._state()
        assert state is not None
        return FlushGuard(Refusals(state, self._mode, self._reads))

    @FirstUse
    def _dml(self) -> DmlGuard:
        """The guard of INSERT, UPDATE and DELETE statements."""
        return DmlGuard(self.flushes)

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Check nothing in this block."""
        with self.flushes.refusals.disabled():
            yield

    def before_flush(self, session: Session) -> None:
        """See :class:`SessionPart`.

        :raises UnlockedWrite: it would write to a document that is not held ForUpdate.
        """
        if not any_declared():
            return
        notify_in_time()  # before anything is checked, the rows of all documents must be listened to
        if "flushes" in vars(self):
            self.flushes.check_flush(session)
        elif rows := rows_to_flush(session):  # the first of its flushes with a document
            self.flushes.check_rows(rows)

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
        return self.flushes.documents.mark()

    def roll_back_to(self, mark: Any) -> None:
        """See :class:`SessionPart`."""
        self.flushes.documents.roll_back_to(mark or 0)

    def locks_lost(self) -> None:
        """See :class:`SessionPart`: nobody knows whether the new documents are there."""
        self.flushes.documents.roll_back_to(0)

    def ended(self, *, committed: bool) -> None:
        """See :class:`SessionPart`."""
        if "flushes" in vars(self):
            self.flushes.documents.roll_back_to(0)
            self.flushes.held.clear()


# Global, as mappers are: each is listened to once, for all sessions of the process.
# Threads: read and changed under the lock.
_followed: WeakSet[Mapper[Any]] = WeakSet()
_following = Lock()  # a thread that finds a mapper followed must find its listeners, too


@listen_for_documents
def _follow(mappers: Collection[Mapper[Any]]) -> None:
    classes = _classes_of_rows(mappers)  # it may configure mappers, of which this is called again
    with _following:
        for mapper in _outermost(classes):
            if mapper not in _followed:
                _followed.add(mapper)
                for name, check in _WRITES.items():
                    allow_listening(mapper.self_and_descendants, name)
                    # With retval, or SQLAlchemy puts a function around ours, for each row a call.
                    event.listen(mapper, name, check, raw=True, propagate=True, retval=True)


def _classes_of_rows(mappers: Collection[Mapper[Any]]) -> set[Mapper[Any]]:
    """Return these classes and all others that have one of the tables of their rows."""
    classes = {*chain.from_iterable(one.self_and_descendants for one in mappers)}
    tables: set[Any] = {table for one in classes for table in one.tables}
    tables |= {link.secondary for one in classes for link in one.relationships}
    by_table = _mappers_by_table()
    return {*mappers, *chain.from_iterable(by_table.get(table, ()) for table in tables)}


@mapper_cache
def _mappers_by_table() -> Mapping[Any, Sequence[Mapper[Any]]]:
    found: defaultdict[Any, list[Mapper[Any]]] = defaultdict(list)
    for mapper in all_mappers():
        for table in mapper.tables:
            found[table].append(mapper)
    return found


def _outermost(mappers: Collection[Mapper[Any]]) -> Iterator[Mapper[Any]]:
    """Yield those that are no subclass of another, whose listeners they have already."""
    for mapper in mappers:
        if not any(one in mappers for one in mapper.iterate_to_root() if one is not mapper):
            yield mapper


def _guard_of(state: InstanceState[Any]) -> FlushGuard | None:
    """Return the guard of a session whose flush began before any document was declared."""
    session = state.session  # a search, which a plain Session pays for at each row
    context = None if session is None else state_of(session)
    guard = None if context is None else context.parts.find(WriteGuard)
    return None if guard is None else guard.flushes


def _before_update(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> Any:
    # The document of a row that was held is held; another, which it comes to, is checked after.
    guard = guards.get(state.session_id) or _guard_of(state)
    if guard is not None and state not in guard.held:
        guard.check_row(state, Write.UPDATE)
    return EXT_CONTINUE


def _after_insert(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> Any:
    guard = guards.get(state.session_id) or _guard_of(state)
    if guard is not None:
        guard.check_row(state, Write.INSERT)
    return EXT_CONTINUE


def _unless_held(write: Write) -> Callable[..., Any]:
    def check(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> Any:
        guard = guards.get(state.session_id) or _guard_of(state)
        if guard is not None:
            moves = guard.held.get(state)
            # A value that was written as an SQL expression has expired, and is no change any more.
            if moves is None or not (
                moves.isdisjoint(state.committed_state)
                and moves.isdisjoint(state.expired_attributes)
            ):
                guard.check_row(state, write)
        return EXT_CONTINUE

    return check


# After the row was written no hook can change it any more, and raising takes it back; before,
# the database still tells what an expired row was.
_WRITES = {
    "after_insert": _after_insert,
    "before_update": _before_update,
    "after_update": _unless_held(Write.UPDATE),
    "before_delete": _unless_held(Write.DELETE),
}
