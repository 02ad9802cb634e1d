"""The guard for flushes: no write to a declared document without its ForUpdate lock.

The guard checks what a flush is about to write before anything is sent.  Listeners of the
program may change more after that, and the flush finds out more itself; so the guard checks
each row again when it has been written, and an error there undoes the flush.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args

from sqlalchemy import ClauseElement
from sqlalchemy.orm import InstanceState, Mapper, RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from ..caller import line_of_program, warn_program
from ..documents import (
    HeaderResolver,
    Part,
    any_declared,
    compares_in_python,
    document_root,
    has_null,
    header_identity,
    key_attributes,
    loaded_headers,
    mapper_of,
    notify_in_time,
    root_of,
)
from ..errors import UnlockedWrite, UnlockedWriteWarning
from ..lock_info import DocumentKey, Identity
from ..options import LockOptions, lock_label
from ..session_ref import session_ref
from ..sqlalchemy_internals import deleted_states, modified_states, new_states
from ..transaction import Ledger, add_document, database_name
from .provenance import ReadLog
from .rules import WriteRules, names_of_parts, rules_for

States = Collection[InstanceState[Any]]
GuardMode = Literal["raise", "warn", "off"]


# Of a test run: the mode of all guards, whatever their sessions say.
_mode_of_all: GuardMode | None = None


def set_guard_of_all(mode: GuardMode | None) -> None:
    """Give the guard of every session that is used from now on this mode; None: its own."""
    global _mode_of_all  # noqa: PLW0603  # it is meant for sessions that nobody has in hand
    if mode is not None:
        check_guard_mode(mode)
    _mode_of_all = mode


def check_guard_mode(mode: object) -> None:
    """Raise ValueError if there is no such mode."""
    if mode not in get_args(GuardMode):
        raise ValueError(f"guard is {', '.join(map(repr, get_args(GuardMode)))}, not {mode!r}")


class Write(enum.Enum):
    """The kinds of writes, in the words of the error."""

    INSERT = "inserted"
    UPDATE = "changed"
    DELETE = "deleted"


RowsOfClass = tuple[Write, WriteRules, list[InstanceState[Any]]]
"""The rows of one class that a flush writes in one way."""

CheckedRows = Mapping[InstanceState[Any], Callable[[Mapping[str, Any]], bool]]
"""Rows that were held when their flush began, each with the test of its changes: where it is true,
the row is not to be checked again."""

_NO_ROWS: Final[CheckedRows] = MappingProxyType({})

# Global: the event of a row that was checked need not look for its session, and for the guard.
# What another flush of the thread has put here since has none of the rows of this one.
_last_flush: Final[ContextVar[CheckedRows]] = ContextVar("sa_doclock.last_flush", default=_NO_ROWS)

checked_rows: Final = _last_flush.get
"""Return the checked rows of the flush that has begun last."""


def not_checked(_changes: Mapping[str, Any]) -> bool:
    """Return False, as the test of rows that were not checked."""
    return False


def rows_of_flush(session: Session) -> list[RowsOfClass]:
    """Return the rows that a flush is about to write, but for those that the guard never checks."""
    _last_flush.set(_NO_ROWS)
    notify_in_time()  # before anything is checked, the rows of all documents must be listened to
    new, changed, deleted = new_states(session), modified_states(session), deleted_states(session)
    if new or deleted:
        # Not -=, which would change the set of the session.
        return _rows_by_class(new, changed - deleted, deleted)
    return list(_by_class(Write.UPDATE, changed))


def _rows_by_class(new: States, changed: States, deleted: States) -> list[RowsOfClass]:
    return [
        *_by_class(Write.INSERT, new),
        *_by_class(Write.UPDATE, changed),
        *_by_class(Write.DELETE, deleted),
    ]


def _by_class(write: Write, states: States) -> Iterator[RowsOfClass]:
    found: dict[type[Any], list[InstanceState[Any]]] = defaultdict(list)
    for state in states:
        found[state.class_].append(state)  # a class, and no mapper, has its hash from C
    for some in found.values():
        rules = rules_for(some[0].manager.mapper)
        if rules is not None:
            yield write, rules, some


class FlushGuard:
    """The guard of one session: it refuses writes that the session may not do.

    :param reads: tells where the session has read a row.
    :param report: is given the errors that a session with ``guard="warn"`` does not raise, and
        the lines of the program.
    """

    _disabled = 0

    def __init__(
        self,
        session: Session,
        ledger: Ledger,
        mode: GuardMode,
        reads: ReadLog,
        report: Callable[[UnlockedWrite, str | None], None],
    ) -> None:
        self._session = session_ref(session)
        self._reads, self._report = reads, report
        self.ledger = ledger
        self._mode = _mode_of_all or mode
        self.checked: dict[InstanceState[Any], Callable[[Mapping[str, Any]], bool]] = {}
        """The rows of this flush that were held when it began."""
        self._told: set[object] = set()
        """The documents that were reported, and the texts that the program was warned of."""

    def __del__(self) -> None:
        """Free the rows, which are those of the last flush after the session's end, too."""
        self.checked.clear()

    @property
    def enabled(self) -> bool:
        """True if this session guards documents, and there are any."""
        if self._mode == "off" or not any_declared():
            return False
        # Before anything is checked, the rows of all documents must be listened to.
        notify_in_time()
        return True

    @property
    def active(self) -> bool:
        """True if writes are checked now."""
        return not self._disabled and self.enabled

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Check nothing in this block."""
        self._disabled += 1
        try:
            yield
        finally:
            self._disabled -= 1

    def reset_warnings(self) -> None:
        """Let the warnings of earlier flushes and statements come again."""
        self._told.clear()

    def check_flush(self, rows: Iterable[RowsOfClass]) -> None:
        """Raise UnlockedWrite if the flush would write to a document that is not held ForUpdate."""
        self.checked.clear()
        _last_flush.set(self.checked)
        if not self._disabled and self._mode != "off":
            self._check(rows, None)

    def check_objects(self, instances: Collection[Any]) -> None:
        """Check objects that are written without a flush."""
        if self.active:
            states = [instance_state(one) for one in instances]
            new = [state for state in states if state.key is None]
            changed = [state for state in states if state.key is not None]
            self._check(_rows_by_class(new, changed, ()), new)

    def check_row(self, state: InstanceState[Any], write: Write) -> None:
        """Check one row that a flush has written, and that an error takes back.

        Not one that is ``checked``.
        """
        rules = rules_for(state.mapper)
        if rules is None:
            return
        if self.active and not self._is_held(rules, state, write):
            check = _FlushCheck(self, self._session(), written=True)
            check.check([(state, rules, write)])
        if write is Write.INSERT:
            self.add_inserted(state)
        elif write is Write.UPDATE:
            self._add_new_key(state, rules)

    def _add_new_key(self, state: InstanceState[Any], rules: WriteRules) -> None:
        key = _new_key_of(state, rules)
        if key is not None:
            self.ledger.add_key((rules.entity, state.identity or ()), key)

    def _check(self, rows: Iterable[RowsOfClass], new: States | None) -> None:
        self.reset_warnings()
        to_check: list[_WrittenRow] = []
        for write, rules, states in rows:
            # The others are held, as what is loaded shows.
            if write is not Write.UPDATE:
                to_check += self._not_held(rules, states, write)
            elif self._all_are_held(rules, states):
                self.checked.update(dict.fromkeys(states, rules.checked.isdisjoint))
            else:
                to_check += self._changes_not_held(rules, states)
        if to_check:
            _FlushCheck(self, self._session(), new).check(to_check)

    def _not_held(self, rules: WriteRules, states: States, write: Write) -> Iterator[_WrittenRow]:
        for state in states:
            if not self._is_held(rules, state, write):
                yield state, rules, write

    def _changes_not_held(self, rules: WriteRules, states: States) -> Iterator[_WrittenRow]:
        for state in states:
            if self._is_held(rules, state, Write.UPDATE):
                self.checked[state] = rules.checked.isdisjoint
            else:
                yield state, rules, Write.UPDATE

    def _all_are_held(self, rules: WriteRules, states: States) -> bool:
        """Return whether _is_held() is true of all these changes, without its calls for each."""
        headers = rules.headers_of_changed(states)
        if headers is None:
            return False
        ledger, entity = self.ledger, rules.entity
        for header in headers:  # mostly one
            key = (entity, header)
            if ledger.held.get(key) is not LockOptions.ForUpdate and not ledger.may_write(key):
                return False
        return True

    def _is_held(self, rules: WriteRules, state: InstanceState[Any], write: Write) -> bool:
        """Return whether what is loaded shows that the document is held, as it mostly does."""
        if write is Write.DELETE:
            moved = not rules.moves.isdisjoint(state.committed_state)
            return not rules.deletes and not moved and self._row_is_held(rules, state)
        changed = state.committed_state
        if rules.updates and not rules.updates.keys().isdisjoint(changed):
            return False
        if state.key is None:
            return rules.header or self._new_row_is_held(rules, state)
        return rules.moves.isdisjoint(changed) and self._row_is_held(rules, state)

    def _row_is_held(self, rules: WriteRules, state: InstanceState[Any]) -> bool:
        may_write, entity, loaded = self.ledger.may_write, rules.entity, state.dict
        if rules.header:
            return may_write((entity, state.identity or ()))
        if rules.direct is not None:
            return may_write((entity, _direct_header(rules.direct, loaded)))
        if rules.root is None:
            return True
        headers = list(loaded_headers(self._session(), rules.root, state.mapper, loaded))
        return bool(headers) and all(may_write((entity, header)) for header in headers)

    def _new_row_is_held(self, rules: WriteRules, state: InstanceState[Any]) -> bool:
        entity, loaded = rules.entity, state.dict
        if rules.direct is None:
            return rules.root is None
        header = _direct_header(rules.direct, loaded)
        if not has_null(header) and not self.ledger.may_write((entity, header)):
            return False
        backrefs = rules.direct.backrefs
        owners = (owner for name in backrefs if (owner := loaded.get(name)) is not None)
        return all(self._is_new_or_held(entity, instance_state(owner)) for owner in owners)

    def _is_new_or_held(self, entity: type[Any], owner: InstanceState[Any]) -> bool:
        if owner.identity is None:
            return owner.pending
        return self.ledger.may_write((entity, owner.identity))

    def add_inserted(self, state: InstanceState[Any]) -> None:
        """Record an inserted row: a new header belongs to this transaction alone."""
        document = _document_of_header(state) if self.enabled else None
        if document is not None and not has_null(document[1]):
            self.ledger.add_inserted(document)

    def permits(self, root: Mapper[Any], identity: Identity) -> bool:
        """Return whether this transaction may write to the document; one without a key is new."""
        return self.ledger.may_write((root.class_, identity)) or has_null(identity)

    def refuse_all(
        self,
        refusals: Collection[Refusal],
        resolvers: Mapping[Mapper[Any], HeaderResolver],
        expected: Collection[type[Any]] = (),
    ) -> None:
        """Refuse these writes, except where the database says that the document is held.

        :param resolvers: they ask the database for the keys of the documents, by root.
        :param expected: classes of which headers are inserted along: a line whose header is not
            in the database yet is checked when both are written.
        """
        keys = {root: {one.identity for one in refusals if one.root is root} for root in resolvers}
        stored = {root: resolvers[root].stored_keys(some) for root, some in keys.items() if some}
        for one in refusals:
            key = stored[one.root].get(one.identity)
            if key is not None:
                self._refuse_unless_held(one, key)
            elif one.root.class_ not in expected:
                self.refuse(one)

    def _refuse_unless_held(self, refusal: Refusal, key: Identity) -> None:
        """Refuse the write, unless the document is held by the key that the database has."""
        entity = refusal.root.class_
        if self.ledger.may_write((entity, key)):
            self.ledger.add_inserted((entity, refusal.identity))  # another name of the document
        else:
            self.refuse(refusal._replace(identity=key))

    def refuse(self, refusal: Refusal) -> None:
        """Raise UnlockedWrite, or warn if this session only warns."""
        entity, identity = refusal.root.class_, refusal.identity
        ident: Any = identity[0] if len(identity) == 1 else identity or None
        held = self.ledger.held.get((entity, identity))
        holds, read = "does not hold", ""
        if held is not None:
            holds = f"holds by {lock_label(held)} only"
        elif refusal.state is not None:
            read = self._reads.describe(refusal.state)
        error = UnlockedWrite(
            f"{refusal.what} without the ForUpdate lock of its document, which this transaction "
            f"{holds}; lock first, then read, then change: session.get_entity({entity.__name__}, "
            f"{'...' if ident is None else repr(ident)}, LockOptions.ForUpdate)."
        )
        error.add_details(read)
        database = database_name(self._session(), {"mapper": refusal.root})
        add_document(error, entity, ident, None, database)
        if self._mode == "raise":
            raise error
        # No warning names a row: Python shows each text once for each line of the program.
        text = (
            f"{refusal.rows} without the ForUpdate lock of the {entity.__name__} that they belong "
            "to; lock first, then read, then change: "
            f"session.get_entity({entity.__name__}, ..., LockOptions.ForUpdate)"
        )
        if text not in self._told:
            self._told.add(text)
            warn_program(text, UnlockedWriteWarning)
        if (entity, identity) not in self._told:
            self._told.add((entity, identity))
            self._report(error, line_of_program())


class Refusal(NamedTuple):
    """A write to a document that the session does not hold by this key."""

    root: Mapper[Any]
    identity: Identity
    what: str  # "Line 1 would be changed in 'value'"
    rows: str  # the same without a key: "Line rows would be changed in 'value'"
    state: InstanceState[Any] | None = None  # the object of the row, where it is known


@dataclass(eq=False)
class _FlushCheck:
    """The full check of the rows of one flush, which share what is read from the database.

    :param new: objects that are inserted along; None: all new ones of the session.
    :param written: the rows are in the database already.
    """

    guard: FlushGuard
    session: Session
    new: States | None = None
    written: bool = False
    resolvers: dict[Mapper[Any], HeaderResolver] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)

    def check(self, to_check: Iterable[_WrittenRow]) -> None:
        for state, rules, write in to_check:
            if rules.root is not None:
                self._check_documents(rules.root, state, write, None)
            related = rules.deletes if write is Write.DELETE else rules.updates
            for name, root in related.items():
                for other in _touched(state, name, write):
                    through = f"{_row(state)}.{name}", f"{state.class_.__name__}.{name}"
                    self._check_documents(root, other, Write.UPDATE, through)
        if self.refusals:
            self.guard.refuse_all(self.refusals, self.resolvers, self._expected())

    def _check_documents(
        self,
        root: Mapper[Any],
        state: InstanceState[Any],
        write: Write,
        through: tuple[str, str] | None,
    ) -> None:
        resolver = self.resolvers.get(root)
        if resolver is None:
            resolver = self.resolvers[root] = HeaderResolver(self.session, root, ask=True)
        for identity in resolver.headers(state):
            if self.guard.permits(root, identity) or (root.class_, identity) in self._inserted:
                continue
            by = through
            if through is None and write is Write.UPDATE:
                attribute = _changed(state, root)
                if attribute is None:
                    return
                by = attribute, attribute
            self.refusals.append(_refusal(root, identity, state, write, by))

    def _expected(self) -> set[type[Any]]:
        """Return the classes of the headers inserted along whose key may be another in Python."""
        if self.written:
            return set()
        return {
            key[0] for key in self._inserted if key and not compares_in_python(mapper_of(key[0]))
        }

    @cached_property
    def _inserted(self) -> frozenset[DocumentKey | None]:
        """The documents whose headers are inserted along, and the new keys of those that are held."""
        new = new_states(self.session) if self.new is None else self.new
        inserted = map(_document_of_header, new)
        return frozenset([*inserted, *self._new_keys()])

    def _new_keys(self) -> Iterator[DocumentKey]:
        for state in modified_states(self.session):
            rules = rules_for(state.mapper)
            key = None if rules is None else _new_key_of(state, rules)
            if rules is None or key is None:
                continue
            if self.guard.ledger.may_write((rules.entity, state.identity or ())):
                yield rules.entity, key


def _document_of_header(state: InstanceState[Any]) -> DocumentKey | None:
    """Return the document whose header the object is; None if it is no header."""
    root = document_root(state.mapper)
    if root is None or root_of(state.mapper) is not root:
        return None
    return root.class_, header_identity(state, root)


def _new_key_of(state: InstanceState[Any], rules: WriteRules) -> Identity | None:
    """Return the primary key that is set on a header; None if none is, or not a plain value."""
    if rules.root is None or rules.keys.isdisjoint(state.committed_state):
        return None
    key = tuple(state.dict.get(name) for name in key_attributes(rules.root))
    return None if any(one is None or isinstance(one, ClauseElement) for one in key) else key


def _direct_header(part: Part, loaded: Mapping[str, Any]) -> Identity:
    # A list, since a generator costs more than all the rest here.
    return tuple([loaded.get(name) for name in part.foreign_key or ()])


_WrittenRow = tuple[InstanceState[Any], WriteRules, Write]


def _refusal(
    root: Mapper[Any],
    identity: Identity,
    state: InstanceState[Any],
    write: Write,
    by: tuple[str, str] | None,
) -> Refusal:
    deed = f"would be {write.value}"
    one, all_of_them = (f" in {name!r}" for name in by) if by else ("", "")
    what = f"{_row(state)} {deed}{one}"
    rows = f"{state.class_.__name__} rows {deed}{all_of_them}"
    return Refusal(root, identity, what, rows, state)


def _touched(state: InstanceState[Any], name: str, write: Write) -> Iterator[InstanceState[Any]]:
    attribute = state.attrs[name]
    history = attribute.history
    if write is not Write.DELETE:
        found = [*(history.added or ()), *(history.deleted or ())]
    elif state.mapper.relationships[name].passive_deletes:
        found = list(history.sum())
    else:
        found = list(attribute.load_history().sum())  # as the flush would do
    yield from (instance_state(instance) for instance in found if instance is not None)


def _changed(state: InstanceState[Any], root: Mapper[Any]) -> str | None:
    """Return the first attribute whose change is a change of the document."""
    mapper = state.mapper
    parts = names_of_parts(root, mapper)
    names = [attribute.key for attribute in mapper.column_attrs]
    names += [
        relationship.key
        for relationship in mapper.relationships
        if relationship.key in parts or relationship.direction is RelationshipDirection.MANYTOONE
    ]
    return next((name for name in names if state.attrs[name].history.has_changes()), None)


def _row(state: InstanceState[Any]) -> str:
    if state.identity is None:
        return f"a new {state.class_.__name__}"
    return f"{state.class_.__name__} {', '.join(map(str, state.identity))}"
