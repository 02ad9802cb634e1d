"""The provenance of the rows of declared documents, which an UnlockedWrite describes.

With ``guard_tracing``, and in a test run of the pytest plugin.  SQLAlchemy numbers the executions
whose rows become objects, and each object keeps the number of the one that has loaded it.  So a
session notes its executions alone, not the rows; an error looks up the one that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from sqlalchemy import Result, event
from sqlalchemy.engine import ChunkedIteratorResult, MergedResult
from sqlalchemy.orm import InstanceState, Mapper, ORMExecuteState, Session

from ..caller import frame_of_program
from ..core.documents import declared_roots, mapper_cache, parts_of
from ..core.ledger import ledger_of
from ..core.transaction import LockContext, SessionPart
from ..sqlalchemy_internals import allow_listening
from .dml_internals import merged_results, run_before, run_of

READS_REMEMBERED: Final = 2000
"""The most executions that a session remembers; of more it forgets the older half."""

_SCHEMA_TO_TRANSLATE: Final = re.compile(r"__\[SCHEMA_[^]]*\]\.")
"""The place of a schema in compiled SQL, with a ``schema_translate_map``."""


class Execution(NamedTuple):
    """An execution of a statement that may have read objects."""

    above: int  # on SQLAlchemy 2.0 a number less than its own; else 0
    last: int  # its number; on SQLAlchemy 2.0 perhaps a greater one
    sql: str
    between_locks: bool  # it was not of a call that takes a lock
    unlocked: bool  # no lock was held
    line: str | None

    def has(self, run: int) -> bool:
        """Return whether this may be its number."""
        return self.above < run <= self.last if self.above else run == self.last


class ReadProvenance(SessionPart):
    """The last statements of one session that may have read objects."""

    def __init__(self, session: Session, state: LockContext) -> None:
        self._session, self._calls = state.session, state.calls
        self._read_into: tuple[Any, list[Execution]] = None, []
        event.listen(session, "do_orm_execute", partial(_note_execution, self._note))

    @property
    def _reads(self) -> list[Execution]:
        """The statements whose objects may be in the identity map; close() and expunge_all() make a new map."""
        identity_map = self._session().identity_map
        if self._read_into[0] is not identity_map:
            self._read_into = identity_map, []
        return self._read_into[1]

    def _note(self, above: int, result: Any) -> None:
        """Note an execution, if it may have read objects.

        :param above: what ``run_before()`` has returned before it.
        """
        # A Core statement has a Result of another type.
        if type(result) is ChunkedIteratorResult:
            reads, ledger = self._reads, ledger_of(self._session())
            try:
                last, sql = run_of(result), result.raw.context.compiled.string  # type: ignore[union-attr]
            except AttributeError:  # a listener of the program has made the result
                return
            between, unlocked = self._calls.current is None, not ledger.held
            reads.append(Execution(above, last, sql, between, unlocked, _line_of_read()))
            if len(reads) > READS_REMEMBERED:
                del reads[: READS_REMEMBERED // 2]
        elif type(result) is MergedResult:  # of a sharded session
            for one in merged_results(result):
                self._note(above, one)

    def describe(self, state: InstanceState[Any]) -> str:
        """Return the sentence that says where the object was read; empty if that is not known."""
        # Pickle takes neither of them along.
        run = getattr(state, "sa_doclock_run", state.runid)
        if run is None:
            return ""
        # The first of them: one that has run within another is noted before it.
        found = next((one for one in self._reads if one.has(run)), None)
        return "" if found is None else _sentence(found)


def _note_execution(note: Callable[[int, Any], None], state: ORMExecuteState) -> Result[Any]:
    _follow_documents()
    above = run_before()
    result = state.invoke_statement()
    note(above, result)
    return result


def _sentence(found: Execution) -> str:
    how = ""  # whether a row is of a document that is held would be a look-up for every row
    if not found.between_locks:
        how = " under a lock that is not held any more"
    elif found.unlocked:
        how = " without the lock"
    sql = _SCHEMA_TO_TRANSLATE.sub("", " ".join(found.sql.split()))
    where = f", at {found.line}" if found.line else ""
    return f"  It was read{how} by {sql}{where}."


# Global, as mappers are: each is listened to once, for all sessions of the process.
# Threads: read and changed under the lock.
_followed: WeakSet[Mapper[Any]] = WeakSet()
_following = Lock()


@mapper_cache
def _follow_documents() -> None:
    """Listen to the classes of all documents that are declared by now."""
    with _following:
        for root in declared_roots():
            for mapper in {root, *(part.detail for part in parts_of(root))}:
                if mapper in _followed:
                    continue
                _followed.add(mapper)
                managers = (one.class_manager for one in mapper.self_and_descendants)
                allow_listening(managers, "refresh")
                event.listen(mapper.class_, "refresh", _note_refresh, raw=True, propagate=True)


def _note_refresh(state: Any, context: Any, *_: object) -> None:
    """Note which execution has loaded an object again, from a listener for ``refresh``.

    SQLAlchemy does not renew the number of an object where it loads a part of its attributes, or
    all those that have expired.
    """
    if context is not None:
        state.sa_doclock_run = context.runid


def _line_of_read() -> str | None:
    """Return the line of the program that has run a statement."""
    frame = frame_of_program()
    if frame is None:
        return None
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
