"""The documents that a transaction may write, and the refusal of others: an error, a warning, or nothing.

With ``guard_tracing``, and in a test run of the pytest plugin, an UnlockedWrite says where its row
was read. SQLAlchemy numbers the executions that load objects, and each object keeps the number of
its execution.  So a session records only executions, not rows; an error looks up the one that it
needs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, get_args
from weakref import WeakSet, ref

from sqlalchemy import Result, event
from sqlalchemy.engine import ChunkedIteratorResult, MergedResult
from sqlalchemy.orm import InstanceState, Mapper, ORMExecuteState, Session

from ..caller import frame_of_program, line_of_program, warn_program
from ..core.documents import (
    HeaderResolver,
    any_declared,
    declared_roots,
    has_null,
    mapper_cache,
    notify_in_time,
    parts_of,
)
from ..core.instrumentation import report_unlocked_write
from ..core.ledger import ledger_of
from ..core.loading import in_session_order
from ..core.transaction import LockContext, add_document, database_name, watch_lent
from ..dml_internals import merged_results, run_before, run_of
from ..errors import UnlockedWrite, UnlockedWriteWarning, outcome_of, with_background
from ..keys import DocumentKey, Identity, key_text, public_key
from ..options import GuardMode, lock_label
from ..sqlalchemy_internals import allow_listening
from ..versions import raise_versions
from .rules import WriteRules

READS_REMEMBERED: Final = 2000
"""The largest number of executions that a session remembers; beyond it, the older half is dropped."""

_SCHEMA_TO_TRANSLATE: Final = re.compile(r"__\[SCHEMA_[^]]*\]\.")
"""The place of a schema in compiled SQL, with a ``schema_translate_map``."""


class Execution(NamedTuple):
    """An execution of a statement that may have read objects."""

    above: int  # on SQLAlchemy 2.0 a number less than its own; otherwise 0
    last: int  # its number; on SQLAlchemy 2.0 perhaps a greater one
    sql: str
    between_locks: bool  # no lock call executed it
    unlocked: bool  # no lock was held
    line: str | None

    def has(self, run: int) -> bool:
        """Return whether this may be its number."""
        return self.above < run <= self.last if self.above else run == self.last


class ReadProvenance:
    """The last statements of one session that may have read objects."""

    def __init__(self, session: Session, state: LockContext) -> None:
        self._session, self._calls = state.session, state.calls
        self._read_into: tuple[Any, list[Execution]] = None, []
        event.listen(session, "do_orm_execute", partial(_note_execution, self._note))

    @property
    def _reads(self) -> list[Execution]:
        """The statements whose objects may be in the identity map, which close() replaces."""
        identity_map = self._session().identity_map
        if self._read_into[0] is not identity_map:
            self._read_into = identity_map, []
        return self._read_into[1]

    def _note(self, above: int, result: Any) -> None:
        """Note an execution if it may have read objects.

        :param above: the result of ``run_before()`` before it.
        """
        # A Core statement has a Result of another type.
        if type(result) is ChunkedIteratorResult:
            reads, ledger = self._reads, ledger_of(self._session())
            try:
                last, sql = run_of(result), result.raw.context.compiled.string  # type: ignore[union-attr]
            except AttributeError:  # a listener of the program created the result
                return
            between, unlocked = self._calls.current is None, not ledger.held
            frame, line = frame_of_program(), None
            if frame is not None:
                code = frame.f_code
                line = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
            reads.append(Execution(above, last, sql, between, unlocked, line))
            if len(reads) > READS_REMEMBERED:
                del reads[: READS_REMEMBERED // 2]
        elif type(result) is MergedResult:  # of a sharded session
            for merged in merged_results(result):
                self._note(above, merged)

    def describe(self, state: InstanceState[Any]) -> str:
        """Return the sentence that says where the object was read, or "" if unknown."""
        # Pickle drops both.
        run = getattr(state, "sa_doclock_run", state.runid)
        if run is None:
            return ""
        # The first of them: a nested execution is noted before the outer one.
        found = next((read for read in self._reads if read.has(run)), None)
        return "" if found is None else _sentence(found)


def _note_execution(note: Callable[[int, Any], None], state: ORMExecuteState) -> Result[Any]:
    _follow_documents()
    above = run_before()
    result = state.invoke_statement()
    note(above, result)
    return result


def _sentence(found: Execution) -> str:
    how = ""  # finding out whether a row's document is locked would cost a look-up per row
    if not found.between_locks:
        how = " under a lock that has been released"
    elif found.unlocked:
        how = " without the lock"
    sql = _SCHEMA_TO_TRANSLATE.sub("", " ".join(found.sql.split()))
    where = f", at {found.line}" if found.line else ""
    return f"  It was read{how} by {sql}{where}."


# Global, like mappers: one listener per mapper serves all sessions of the process.
# Threads: read and changed under the lock.
_followed: WeakSet[Mapper[Any]] = WeakSet()
_following = Lock()


@mapper_cache
def _follow_documents() -> None:
    with _following:
        for root in declared_roots():
            for mapper in {root, *(part.detail for part in parts_of(root))}:
                if mapper in _followed:
                    continue
                _followed.add(mapper)
                managers = (descendant.class_manager for descendant in mapper.self_and_descendants)
                allow_listening(managers, "refresh")
                event.listen(mapper.class_, "refresh", _note_refresh, raw=True, propagate=True)


def _note_refresh(state: Any, context: Any, *_: object) -> None:
    """Note which execution refreshed an object, as a listener for ``refresh``.

    SQLAlchemy does not renew an object's number when it loads only some attributes, or the expired
    ones.
    """
    if context is not None:
        state.sa_doclock_run = context.runid


_MODES: Final = get_args(GuardMode)


def check_guard_mode(mode: object) -> None:
    """:raises ValueError: there is no such mode."""
    if mode not in _MODES:
        raise ValueError(f"guard must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")


class Refusal(NamedTuple):
    """A write to a document that the session does not hold by this key."""

    root: Mapper[Any]
    identity: Identity
    subject: str  # "Line 1"
    did: str  # "would be changed in 'value'"
    state: InstanceState[Any] | None = None  # the object of the row, if known


class GuardMemory:
    """The memory of a guard: of one transaction, and of the current flush.

    :ivar held: the changed and deleted rows of the flush whose documents were locked when it began,
        each with the rules of its class; such a row is not checked again unless an attribute in its
        rules changes.
    :ivar written: the check of the rows that the flush has written, if one of them needs it.
    :ivar raised: the documents whose versions statements have raised, which a savepoint may undo.
    """

    def __init__(self, guard: Any) -> None:
        self.guard = guard
        self.held: dict[InstanceState[Any], WriteRules] = {}
        self.written: Any = None
        self.raised: dict[tuple[Mapper[Any], Identity], None] = {}


class Refusals:
    """The documents that a session may write now, and the refusal of writes to others.

    It may write those that its transaction holds ForUpdate, and those whose headers it has
    inserted, which need no lock until a rollback.

    :param reads: knows where the session read a row, if it traces that.
    :ivar unguarded: the number of unguarded blocks around this call.
    """

    unguarded = 0

    def __init__(self, state: LockContext, mode: GuardMode, reads: ReadProvenance | None) -> None:
        self.session = state.session
        self._state: Callable[[], LockContext] = ref(state)  # type: ignore[assignment]
        self._mode, self._reads = mode, reads
        self._reported: dict[object, None] = {}  # smaller than a set
        """The documents that were reported, and the texts of warnings to the program."""

    @property
    def memory(self) -> GuardMemory:
        """The guard's memory of the current transaction."""
        return self._state().transaction.memory(self, partial(GuardMemory, self))

    @property
    def enabled(self) -> bool:
        """True if any document is declared."""
        if not any_declared():
            return False
        # Before any check, listen to the rows of all documents.
        notify_in_time()
        return True

    @property
    def active(self) -> bool:
        """True if writes are checked now."""
        return not self.unguarded and self.enabled

    def may_write(self, key: DocumentKey) -> bool:
        """Return whether the document is held ForUpdate, or is new in this transaction."""
        return ledger_of(self.session()).may_write(key)

    def permits(self, root: Mapper[Any], identity: Identity) -> bool:
        """Return whether this transaction may write the document; one without a key is new."""
        return self.may_write((root.class_, identity)) or has_null(identity)

    def add_inserted(self, key: DocumentKey) -> None:
        """Record a document whose header this transaction has inserted, or another spelling of one.

        In a collation that ignores case, ``ABC`` is another spelling of ``abc``.
        """
        state = self._state()
        if state.ledger.is_empty():
            watch_lent(state)
        state.ledger.add_new(key)

    def raise_versions(self, root: Mapper[Any], identities: Collection[Identity]) -> None:
        """Raise the versions of these documents, whose parts a statement has written."""
        raise_versions(self.session(), root, identities)
        for identity in identities:
            self.memory.raised[root, identity] = None

    def add_key(self, key: DocumentKey, identity: Identity | None) -> None:
        """Record that the primary key of a document was changed to this, if it was; both keys are held."""
        if identity is None:
            return
        ledger = ledger_of(self.session())
        held = ledger.held.get(key)
        if held is not None:
            ledger.record((key[0], identity), held)
        elif key in ledger.new:
            self.add_inserted((key[0], identity))

    def reset_warnings(self) -> None:
        """Let earlier warnings appear again."""
        self._reported.clear()

    def allow(
        self,
        found: Iterable[Refusal],
        resolvers: Mapping[Mapper[Any], HeaderResolver],
        expected: Callable[[], Collection[type[Any]]] = tuple,
    ) -> bool:
        """Return whether all these documents may be written; refuse the others.

        The database may know a locked document by another key.

        :param resolvers: ask the database for the keys of the documents, by root.
        :param expected: returns the classes of headers inserted in the same flush: a line whose header is
            not in the database yet is checked when both are written.
        """
        unheld = dict.fromkeys(each for each in found if not self.permits(each.root, each.identity))
        if not unheld:
            return True
        coming, asked = expected(), defaultdict[Mapper[Any], set[Identity]](set)
        for refusal in unheld:
            asked[refusal.root].add(refusal.identity)
        stored = {root: resolvers[root].stored_keys(keys) for root, keys in asked.items()}
        refusals = sorted(unheld, key=lambda refusal: repr(refusal.identity))  # may be equal
        for refusal in in_session_order(self.session(), refusals, lambda refusal: refusal.state):
            key, entity = stored[refusal.root].get(refusal.identity), refusal.root.class_
            if key is None:
                if entity not in coming:
                    self.refuse(refusal)
            elif self.may_write((entity, key)):
                self.add_inserted((entity, refusal.identity))  # the document under another spelling
            else:
                self.refuse(refusal._replace(identity=key))
        return False

    def refuse_written(self, refusal: Refusal) -> None:
        """Refuse a write that has happened already: the transaction cannot be committed."""
        try:
            self.refuse(refusal)
        except UnlockedWrite as error:
            self._state().transaction.refuse_from_now_on(error)
            raise

    def refuse(self, refusal: Refusal) -> None:
        """Raise UnlockedWrite, or warn if this session only warns."""
        entity, identity = refusal.root.class_, refusal.identity
        ident = public_key(identity) if identity else None
        held = ledger_of(self.session()).held.get((entity, identity))
        holds, read = "does not hold the document", ""
        if held is not None:
            holds = f"holds the document by {lock_label(held)} only"
        elif refusal.state is not None and self._reads is not None:
            read = self._reads.describe(refusal.state)
        error = UnlockedWrite(
            f"{refusal.subject} {refusal.did} without the ForUpdate lock of its document. This transaction {holds}. "
            f"Lock first, then read, then change: session.get_entity({entity.__name__}, "
            f"{'...' if ident is None else key_text(ident)}, LockOptions.ForUpdate)."
        )
        error.add_details(read)
        database = database_name(self.session(), {"mapper": refusal.root})
        add_document(error, entity, ident, None, database)
        if self._mode == "raise":
            raise error
        # The warning names no row: Python shows each text once per line of the program.
        state = refusal.state
        rows = refusal.subject if state is None else f"{state.class_.__name__} rows"
        text = (
            f"{rows} {refusal.did} without the ForUpdate lock of their {entity.__name__}. Lock first, then "
            "read, then change: "
            f"session.get_entity({entity.__name__}, ..., LockOptions.ForUpdate)"
        )
        if text not in self._reported:
            self._reported[text] = None
            background = with_background(text, "warning", outcome_of(error))
            warn_program(background, UnlockedWriteWarning)
        if (entity, identity) not in self._reported:
            self._reported[entity, identity] = None
            report_unlocked_write(self.session(), error, line_of_program())
