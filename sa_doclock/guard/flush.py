"""The guard for flushes: no write to a declared document without its ForUpdate lock.

The guard checks what a flush is about to write before anything is sent.  Listeners of the
program may change more after that, and the flush finds out more itself; so the guard checks
each row again when it has been written, and an error there undoes the flush.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, get_args

from sqlalchemy import Insert
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import FromStatement, InstanceState, Mapper, RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from ..caller import warn_program
from ..dialects import product_of
from ..documents import (
    HeaderResolver,
    Part,
    any_declared,
    document_root,
    has_null,
    header_identity,
    loaded_headers,
    root_of,
)
from ..errors import UnlockedWrite, UnlockedWriteWarning
from ..lock_info import DocumentKey, Identity
from ..options import lock_label
from ..session_ref import session_ref
from ..sqlalchemy_internals import values_of
from ..transaction import Ledger, add_document
from .provenance import describe_load
from .rules import WriteRules, names_of_parts, rules_for

GuardMode = Literal["raise", "warn", "off"]


def check_guard_mode(mode: object) -> None:
    """Raise ValueError if there is no such mode."""
    if mode not in get_args(GuardMode):
        raise ValueError(f"guard is {', '.join(map(repr, get_args(GuardMode)))}, not {mode!r}")


class Write(enum.Enum):
    """The kinds of writes, in the words of the error."""

    INSERT = "inserted"
    UPDATE = "changed"
    DELETE = "deleted"


class FlushGuard:
    """The guard of one session: it refuses writes that the session may not do."""

    def __init__(self, session: Session, ledger: Ledger, mode: GuardMode) -> None:
        self._session = session_ref(session)
        self.ledger = ledger
        self._mode = mode
        self._disabled = 0
        # The rows that were held when this flush began, each with the attributes that must not
        # change if it is not to be checked again.
        self._checked: dict[InstanceState[Any], frozenset[str]] = {}
        self._warned: set[DocumentKey] = set()

    @property
    def enabled(self) -> bool:
        """True if this session guards documents, and there are any."""
        return self._mode != "off" and any_declared()

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
        self._warned.clear()

    def check_flush(self) -> None:
        """Raise UnlockedWrite if the flush would write to a document that is not held ForUpdate."""
        self._checked.clear()
        if self.active:
            session = self._session()
            self._check(session.new, session.dirty, session.deleted)

    def check_objects(self, instances: Collection[Any]) -> None:
        """Check objects that are written without a flush."""
        if self.active:
            new = [one for one in instances if instance_state(one).key is None]
            known = [one for one in instances if instance_state(one).key is not None]
            self._check(new, known, ())

    def check_row(self, state: InstanceState[Any], write: Write) -> None:
        """Check one row that a flush has written, and that an error takes back."""
        attributes = self._checked.get(state)
        if attributes is not None and attributes.isdisjoint(state.committed_state):
            return
        rules = rules_for(state.mapper)
        if rules is None:
            return
        if self.active and not self._is_held(rules, state, write):
            session = self._session()
            _FlushCheck(self, session, session.new).check([(state, rules, write)])
        if write is Write.INSERT:
            self.add_inserted(state)

    def _check(self, new: Collection[Any], changed: Iterable[Any], deleted: Iterable[Any]) -> None:
        self.reset_warnings()
        to_check: list[_WrittenRow] = []  # the others are held, as what is loaded shows
        for write, instances in zip(Write, (new, changed, deleted), strict=True):
            for instance in instances:
                state = instance_state(instance)
                rules = rules_for(state.mapper)
                if rules is None:
                    continue
                if not self._is_held(rules, state, write):
                    to_check.append((state, rules, write))
                elif write is Write.UPDATE:
                    self._checked[state] = rules.checked
        if to_check:
            _FlushCheck(self, self._session(), new).check(to_check)

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

    def record_returned(self, state: InstanceState[Any], statement: Any) -> None:
        """Record a row that a statement has written and returned."""
        inner = statement.element if isinstance(statement, FromStatement) else statement
        if isinstance(inner, Insert) and not values_of(inner).conditional:
            self.add_inserted(state)

    def permits(self, root: Mapper[Any], identity: Identity) -> bool:
        """Return whether this transaction may write to the document; one without a key is new."""
        return self.ledger.may_write((root.class_, identity)) or has_null(identity)

    def refuse(self, root: Mapper[Any], identity: Identity, what: str, load: str = "") -> None:
        """Raise UnlockedWrite, or warn if this session only warns.

        :param load: the sentence that says where the row was read.
        """
        entity = root.class_
        ident: Any = identity[0] if len(identity) == 1 else identity or None
        held = self.ledger.held.get((entity, identity))
        holds, read = "does not hold", load
        if held is not None:
            holds, read = f"holds by {lock_label(held)} only", ""
        error = UnlockedWrite(
            f"{what} without the ForUpdate lock of its document, which this transaction {holds}; "
            f"lock first, then read, then change: session.get_entity({entity.__name__}, "
            f"{'...' if ident is None else repr(ident)}, LockOptions.ForUpdate).{read}"
        )
        add_document(error, entity, ident, None, self._database(root))
        if self._mode == "raise":
            raise error
        if (entity, identity) not in self._warned:
            self._warned.add((entity, identity))
            warn_program(str(error), UnlockedWriteWarning)

    def _database(self, root: Mapper[Any]) -> str:
        try:
            return product_of(self._session().get_bind(root).dialect)
        except UnboundExecutionError:  # the bind_arguments of the statement have named it
            return "its database"


class _FlushCheck:
    """The full check of the rows of one flush, which share what is read from the database."""

    def __init__(self, guard: FlushGuard, session: Session, new: Iterable[Any]) -> None:
        self._guard = guard
        self._session = session
        self._new = new  # objects that are inserted along
        self._resolvers: dict[Mapper[Any], HeaderResolver] = {}

    def check(self, to_check: Iterable[_WrittenRow]) -> None:
        for state, rules, write in to_check:
            if rules.root is not None:
                self._check_documents(rules.root, state, write, None)
            related = rules.deletes if write is Write.DELETE else rules.updates
            for name, root in related.items():
                for other in _touched(state, name, write):
                    self._check_documents(root, other, Write.UPDATE, f"{_row(state)}.{name}")

    def _check_documents(
        self, root: Mapper[Any], state: InstanceState[Any], write: Write, through: str | None
    ) -> None:
        resolver = self._resolvers.get(root)
        if resolver is None:
            resolver = self._resolvers[root] = HeaderResolver(self._session, root, ask=True)
        for identity in resolver.headers(state):
            if self._guard.permits(root, identity) or (root.class_, identity) in self._inserted:
                continue
            attribute = through
            if through is None and write is Write.UPDATE:
                attribute = _changed(state, root)
                if attribute is None:
                    return
            by = f" in {attribute!r}" if attribute else ""
            what = f"{_row(state)} would be {write.value}{by}"
            self._guard.refuse(root, identity, what, describe_load(state))

    @cached_property
    def _inserted(self) -> frozenset[DocumentKey | None]:
        """The documents whose headers are inserted along."""
        return frozenset(_document_of_header(instance_state(one)) for one in self._new)


def _document_of_header(state: InstanceState[Any]) -> DocumentKey | None:
    """Return the document whose header the object is; None if it is no header."""
    root = document_root(state.mapper)
    if root is None or root_of(state.mapper) is not root:
        return None
    return root.class_, header_identity(state, root)


def _direct_header(part: Part, loaded: Mapping[str, Any]) -> Identity:
    # A list, since a generator costs more than all the rest here.
    return tuple([loaded.get(name) for name in part.foreign_key or ()])


_WrittenRow = tuple[InstanceState[Any], WriteRules, Write]


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
