"""The write guard: nobody writes to a declared document without its ForUpdate lock.

It looks at what a flush is about to write before anything is sent.  What the listeners of
the program change after that, and what the flush itself finds out, is looked at once more
when its row has been written, where an error undoes the flush.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, get_args

from sqlalchemy import Insert
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import (
    FromStatement,
    InstanceState,
    Mapper,
    RelationshipDirection,
    Session,
)
from sqlalchemy.orm.attributes import instance_state

from ..caller import warn_program
from ..dialects import product_of
from ..documents import (
    HeaderResolver,
    any_declared,
    document_root,
    has_null,
    header_identity,
    loaded_headers,
    parts_of,
    root_of,
)
from ..errors import UnlockedWrite, UnlockedWriteWarning
from ..lock_info import Identity
from ..options import lock_label
from ..session_ref import weakly
from ..sqlalchemy_internals import values_of
from ..transaction import Ledger, add_document
from .provenance import describe_load
from .rules import WriteRules, rules_for

GuardMode = Literal["raise", "warn", "off"]
_MODES: Final = get_args(GuardMode)


class Write(enum.Enum):
    """What happens to a row, in the words of the error."""

    INSERT = "inserted"
    UPDATE = "changed"
    DELETE = "deleted"


class FlushGuard:
    """What one session may write.

    :raises ValueError: the mode is none.
    """

    def __init__(self, session: Session, ledger: Ledger, mode: GuardMode) -> None:
        if mode not in _MODES:
            raise ValueError(f"guard is {', '.join(map(repr, _MODES))}, not {mode!r}")
        self._session = weakly(session)
        self.ledger = ledger
        self._mode = mode
        self._disabled = 0
        # Held when this flush began, as long as none of these attributes is changed.
        self._seen: dict[InstanceState[Any], frozenset[str]] = {}
        self._warned: set[tuple[type[Any], Identity]] = set()

    @property
    def enabled(self) -> bool:
        """Whether there are documents to look after."""
        return self._mode != "off" and any_declared()

    @property
    def active(self) -> bool:
        """Whether writes are looked at."""
        return not self._disabled and self.enabled

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Look at nothing in this block."""
        self._disabled += 1
        try:
            yield
        finally:
            self._disabled -= 1

    def reset_warnings(self) -> None:
        """A flush or a statement is looked at: what was warned of before may come again."""
        self._warned.clear()

    def check_flush(self) -> None:
        """:raises UnlockedWrite: it would write to a document that is not held ForUpdate."""
        self._seen.clear()
        if self.active:
            self.reset_warnings()
            session = self._session()
            suspects: list[_Suspect] = []
            self._collect(suspects, session.new, Write.INSERT)
            self._collect(suspects, session.dirty, Write.UPDATE)
            self._collect(suspects, session.deleted, Write.DELETE)
            if suspects:
                _Writes(self, session).check(suspects)

    def check_objects(self, instances: Collection[Any]) -> None:
        """The same for objects that are written without a flush."""
        if self.active:
            self.reset_warnings()
            new = [one for one in instances if instance_state(one).key is None]
            known = [one for one in instances if instance_state(one).key is not None]
            suspects: list[_Suspect] = []
            self._collect(suspects, new, Write.INSERT)
            self._collect(suspects, known, Write.UPDATE)
            _Writes(self, self._session(), new).check(suspects)

    def check_row(self, state: InstanceState[Any], write: Write) -> None:
        """The same for one row that a flush has written, and may have to take back."""
        settled = self._seen.get(state)
        if settled is not None and settled.isdisjoint(state.committed_state):
            return
        interest = rules_for(state.mapper)
        if interest is None:
            return
        if self.active and not self._is_held(interest, state, write):
            _Writes(self, self._session()).check([(state, interest, write)])
        if write is Write.INSERT:
            self.add_inserted(state)

    def _collect(self, suspects: list[_Suspect], instances: Iterable[Any], write: Write) -> None:
        """Add those of the instances that take more than a glance."""
        for instance in instances:
            state = instance_state(instance)
            interest = rules_for(state.mapper)
            if interest is not None:
                if not self._is_held(interest, state, write):
                    suspects.append((state, interest, write))
                elif write is Write.UPDATE:
                    self._seen[state] = interest.settled

    def _is_held(self, interest: WriteRules, state: InstanceState[Any], write: Write) -> bool:
        """Whether a glance shows that all is well, as it mostly does."""
        if write is Write.DELETE:
            moved = not interest.moves.isdisjoint(state.committed_state)
            return not interest.left and not moved and self._row_is_held(interest, state)
        changed = state.committed_state
        if interest.watched and not interest.watched.keys().isdisjoint(changed):
            return False
        if state.key is None:
            return interest.header or self._new_row_is_held(interest, state)
        return interest.moves.isdisjoint(changed) and self._row_is_held(interest, state)

    def _row_is_held(self, interest: WriteRules, state: InstanceState[Any]) -> bool:
        may_write, entity, loaded = self.ledger.may_write, interest.entity, state.dict
        if interest.header:
            return may_write((entity, state.identity or ()))
        if interest.foreign_key is not None:
            return may_write((entity, tuple([loaded.get(name) for name in interest.foreign_key])))
        if interest.root is None:
            return True
        headers = list(loaded_headers(self._session(), interest.root, state.mapper, loaded))
        return bool(headers) and all(may_write((entity, header)) for header in headers)

    def _new_row_is_held(self, interest: WriteRules, state: InstanceState[Any]) -> bool:
        entity, loaded = interest.entity, state.dict
        if interest.foreign_key is None:
            return interest.root is None
        header = tuple([loaded.get(name) for name in interest.foreign_key])
        if not has_null(header) and not self.ledger.may_write((entity, header)):
            return False
        owners = (owner for name in interest.backrefs if (owner := loaded.get(name)) is not None)
        return all(self._is_new_or_held(entity, instance_state(owner)) for owner in owners)

    def _is_new_or_held(self, entity: type[Any], owner: InstanceState[Any]) -> bool:
        if owner.identity is None:
            return owner.pending
        return self.ledger.may_write((entity, owner.identity))

    def add_inserted(self, state: InstanceState[Any]) -> None:
        """A row was inserted: a header belongs to this transaction alone."""
        root = document_root(state.mapper) if self.enabled else None
        if root is not None and root_of(state.mapper) is root:
            identity = header_identity(state, root)
            if not has_null(identity):
                self.ledger.add_inserted((root.class_, identity))

    def record_returned(self, state: InstanceState[Any], statement: Any) -> None:
        """A statement has returned a row that it has written."""
        inner = statement.element if isinstance(statement, FromStatement) else statement
        if isinstance(inner, Insert) and not values_of(inner).conditional:
            self.add_inserted(state)

    def permits(
        self,
        root: Mapper[Any],
        identity: Identity,
        new: Collection[tuple[type[Any], Identity]] = (),
    ) -> bool:
        """Whether this transaction may write to the document.

        :param new: headers that are inserted along.
        """
        key = (root.class_, identity)
        if self.ledger.may_write(key) or key in new:
            return True
        return has_null(identity)  # it has no key yet, so it is new

    def refuse(self, root: Mapper[Any], identity: Identity, what: str, seen: str = "") -> None:
        """:raises UnlockedWrite: unless this session only warns."""
        entity = root.class_
        ident: Any = identity[0] if len(identity) == 1 else identity or None
        held = self.ledger.held.get((entity, identity))
        holds, read = "does not hold", seen
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
        except UnboundExecutionError:  # it was told by the bind_arguments of the statement
            return "its database"


class _Writes:
    """The rows of one flush; what was found out of their documents serves for all of them."""

    def __init__(
        self, guard: FlushGuard, session: Session, new: Iterable[Any] | None = None
    ) -> None:
        self._guard = guard
        self._session = session
        self._new = new  # None: the session's
        self._born: frozenset[tuple[type[Any], Identity]] | None = None
        self._memberships: dict[Mapper[Any], HeaderResolver] = {}

    def check(self, suspects: Iterable[_Suspect]) -> None:
        for state, interest, write in suspects:
            if interest.root is not None:
                self._check_documents(interest.root, state, write, None)
            watched = interest.left if write is Write.DELETE else interest.watched
            for name, root in watched.items():
                for other in _touched(state, name, write):
                    self._check_documents(root, other, Write.UPDATE, f"{_row(state)}.{name}")

    def _check_documents(
        self, root: Mapper[Any], state: InstanceState[Any], write: Write, through: str | None
    ) -> None:
        membership = self._memberships.get(root)
        if membership is None:
            membership = self._memberships[root] = HeaderResolver(self._session, root, ask=True)
        for identity in membership.headers(state):
            if self._guard.permits(root, identity):
                continue
            if self._guard.permits(root, identity, self._headers_inserted()):
                continue
            attribute = through
            if through is None and write is Write.UPDATE:
                attribute = _changed(state, root)
                if attribute is None:
                    return
            by = f" in {attribute!r}" if attribute else ""
            what = f"{_row(state)} would be {write.value}{by}"
            self._guard.refuse(root, identity, what, describe_load(state))

    def _headers_inserted(self) -> frozenset[tuple[type[Any], Identity]]:
        if self._born is None:
            new = self._session.new if self._new is None else self._new
            states = [instance_state(one) for one in new]
            roots = ((document_root(state.mapper), state) for state in states)
            self._born = frozenset(
                (root.class_, header_identity(state, root))
                for root, state in roots
                if root is not None and root_of(state.mapper) is root
            )
        return self._born


_Suspect = tuple[InstanceState[Any], WriteRules, Write]


def _touched(state: InstanceState[Any], name: str, write: Write) -> Iterator[InstanceState[Any]]:
    attribute = state.attrs[name]
    if write is not Write.DELETE:
        found = [*(attribute.history.added or ()), *(attribute.history.deleted or ())]
    elif state.mapper.relationships[name].passive_deletes:
        found = list(attribute.history.sum())
    else:
        found = list(attribute.load_history().sum())  # as the flush would do
    for instance in found:
        if instance is not None:
            yield instance_state(instance)


def _changed(state: InstanceState[Any], root: Mapper[Any]) -> str | None:
    """The first attribute whose change is one of the document."""
    mapper = state.mapper
    parts = {part.name for part in parts_of(root) if mapper.isa(part.owner)}
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
