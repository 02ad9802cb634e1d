"""The write guard: nobody writes to a declared document without its ForUpdate lock.

It looks at what a flush is about to write before anything is sent.  What the listeners of
the program change after that, and what the flush itself finds out, is looked at once more
when its row is about to be written.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Connection, event, inspect
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    RelationshipDirection,
    RelationshipProperty,
    Session,
)
from sqlalchemy.orm.attributes import get_history, instance_state

from .aftermath import name_document
from .declarations import any_declared, document_root, follow_declared, parts_above, parts_of
from .dialects import product_of
from .documents import remembered, root_of
from .errors import UnlockedWrite, UnlockedWriteWarning
from .ledger import Ledger
from .membership import UNKNOWN, Identity, Membership, identity_in, is_header
from .options import spelled
from .reads import follow, frame_of_program, told, trace

GuardMode = Literal["raise", "warn", "off"]


class Write(enum.Enum):
    """What happens to a row, in the words of the error."""

    INSERT = "inserted"
    UPDATE = "changed"
    DELETE = "deleted"


class Guard:
    """What one session may write.

    :raises ValueError: the mode is none.
    """

    def __init__(self, session: Session, ledger: Ledger, mode: GuardMode, *, tracing: bool) -> None:
        if mode not in get_args(GuardMode):
            raise ValueError(f"guard is {', '.join(map(repr, get_args(GuardMode)))}, not {mode!r}")
        self._session = session
        self.ledger = ledger
        self._mode = mode
        self._lifted = 0
        self._inserts = False  # perhaps a header, in this flush
        self._checked: set[InstanceState[Any]] = set()
        self._warned: set[tuple[type[Any], Identity]] = set()
        if mode != "off":
            _guards[session] = ref(self)
            if tracing:
                trace(session)

    @property
    def active(self) -> bool:
        """Whether there is anything to look at."""
        return self._mode != "off" and not self._lifted and any_declared()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Look at nothing in this block."""
        self._lifted += 1
        try:
            yield
        finally:
            self._lifted -= 1

    def check_flush(self) -> None:
        """:raises UnlockedWrite: it would write to a document that is not held ForUpdate."""
        self._checked.clear()
        self._warned.clear()
        self._inserts = bool(self._lifted)
        if self.active:
            flush = _Writes(self, self._session)
            flush.check(self._session.new, Write.INSERT)
            flush.check(self._session.dirty, Write.UPDATE)
            flush.check(self._session.deleted, Write.DELETE)

    def check_objects(self, instances: Iterable[Any], write: Write) -> None:
        """The same for some objects, which need not be in the session."""
        if self.active:
            _Writes(self, self._session).check(instances, write)

    def check_row(self, state: InstanceState[Any], write: Write) -> None:
        """The same for one row that the flush is about to write."""
        if state not in self._checked and self.active:
            _Writes(self, self._session).check((state.obj(),), write)

    def looks_at(self, state: InstanceState[Any], write: Write) -> None:
        """The row need not be looked at again in this flush."""
        self._checked.add(state)
        if write is Write.INSERT:
            self._inserts = True

    def note_new(self) -> None:
        """After a flush: headers that were inserted belong to this transaction alone."""
        if self._inserts:
            for instance in self._session.new:
                state = instance_state(instance)
                root = document_root(state.mapper)
                if root is not None and root_of(state.mapper) is root:
                    identity = tuple(state.mapper.primary_key_from_instance(instance))
                    self.ledger.bear((root.class_, identity))

    def permits(self, root: Mapper[Any], identity: Identity) -> bool:
        """Whether this transaction may write to the document."""
        key = (root.class_, identity)
        if self.ledger.may_write(key) or (identity is not UNKNOWN and None in identity):
            return True  # no key yet: a header that is inserted by the same flush
        return any(
            identity_in(inspect(new), root) == identity
            for new in self._session.new
            if root_of(inspect(new).mapper) is root
        )

    def refuse(self, root: Mapper[Any], identity: Identity, what: str, seen: str = "") -> None:
        """:raises UnlockedWrite: unless this session only warns."""
        entity = root.class_
        ident: Any = identity[0] if len(identity) == 1 else identity or None
        held = self.ledger.held.get((entity, identity))
        state, read = "does not hold", seen
        if held is not None:
            state, read = f"holds by {spelled(held)} only", ""
        error = UnlockedWrite(
            f"{what} without the ForUpdate lock of its document, which this transaction {state}; "
            f"lock first, then read, then change: session.get_entity({entity.__name__}, "
            f"{'...' if ident is None else repr(ident)}, LockOptions.ForUpdate).{read}"
        )
        name_document(error, entity, ident, None, product_of(self._session.get_bind(root).dialect))
        if self._mode == "raise":
            raise error
        if (entity, identity) not in self._warned:
            self._warned.add((entity, identity))
            _warn(str(error))


class _Writes:
    """The rows of one flush; what was found out of their documents serves for all of them."""

    def __init__(self, guard: Guard, session: Session) -> None:
        self._guard = guard
        self._session = session
        self._memberships: dict[Mapper[Any], Membership] = {}

    def check(self, instances: Iterable[Any], write: Write) -> None:
        for instance in instances:
            state = instance_state(instance)
            interest = _interest_in(state.mapper)
            if interest is not None:
                self.check_state(state, interest, write)

    def check_state(self, state: InstanceState[Any], interest: _Interest, write: Write) -> None:
        if interest.root is not None:
            self._guard.looks_at(state, write)
            if not self._is_held(interest, state, write):
                self._check_documents(interest.root, state, write, None)
        for name, root in interest.watched:
            if write is Write.DELETE or name in state.committed_state:
                for other in _touched(state, name, write):
                    self._check_documents(root, other, Write.UPDATE, f"{_row(state)}.{name}")

    def _is_held(self, interest: _Interest, state: InstanceState[Any], write: Write) -> bool:
        """Whether a glance shows that all is well, as it mostly does."""
        may_write, entity, loaded = self._guard.ledger.may_write, interest.entity, state.dict
        if interest.header:
            identity = state.identity
            return write is Write.INSERT if identity is None else may_write((entity, identity))
        if interest.foreign_key is None:
            return False  # it takes more than a glance
        header = tuple([loaded.get(name) for name in interest.foreign_key])
        if write is not Write.INSERT:
            moved = not interest.moves.isdisjoint(state.committed_state)
            return not moved and may_write((entity, header))
        if None not in header and not may_write((entity, header)):
            return False
        owners = [owner for name in interest.backrefs if (owner := loaded.get(name)) is not None]
        return all(may_write((entity, instance_state(owner).identity or ())) for owner in owners)

    def _check_documents(
        self, root: Mapper[Any], state: InstanceState[Any], write: Write, through: str | None
    ) -> None:
        membership = self._memberships.get(root)
        if membership is None:
            membership = self._memberships[root] = Membership(self._session, root, ask=True)
        for identity in membership.headers(state):
            if self._guard.permits(root, identity):
                continue
            attribute = through
            if through is None and write is Write.UPDATE:
                attribute = _changed(state, root)
                if attribute is None:
                    return
            by = f" in {attribute!r}" if attribute else ""
            what = f"{_row(state)} would be {write.value}{by}"
            self._guard.refuse(root, identity, what, told(state))


class _Interest(NamedTuple):
    """Why the guard looks at objects of a class."""

    root: Mapper[Any] | None  # they are rows of its documents
    entity: type[Any]  # the class of the root
    header: bool  # each is the header of a document
    foreign_key: tuple[str, ...] | None  # of a part that belongs to its header directly
    backrefs: tuple[str, ...]
    moves: frozenset[str]  # the attributes that move it from one document to another
    watched: tuple[tuple[str, Mapper[Any]], ...]  # relationships that write to rows of others


@remembered
def _interest_in(mapper: Mapper[Any]) -> _Interest | None:
    watched = []
    for relationship in mapper.relationships:
        root = None if relationship.viewonly else document_root(relationship.mapper)
        if root is not None and _writes_to(relationship, root):
            watched.append((relationship.key, root))
    root = document_root(mapper)
    if root is None and not watched:
        return None
    above = () if root is None else parts_above(root, mapper)
    moves = frozenset(
        name for part in above for name in (*(part.foreign_key or ()), *part.backrefs)
    )
    direct = above[0] if len(above) == 1 and root and is_header(root, above[0].owner) else None
    return _Interest(
        root,
        (root or mapper).class_,
        root is not None and is_header(root, mapper),
        direct.foreign_key if direct else None,
        direct.backrefs if direct else (),
        moves,
        tuple(watched),
    )


def _writes_to(relationship: RelationshipProperty[Any], root: Mapper[Any]) -> bool:
    """Whether the flush of this relationship writes to rows of a document of the other side."""
    if relationship.secondary is None:
        return relationship.direction is RelationshipDirection.ONETOMANY
    return any(
        part.relationship.secondary is relationship.secondary
        and relationship.mapper.isa(part.owner)
        for part in parts_of(root)
    )


def _touched(state: InstanceState[Any], name: str, write: Write) -> Iterator[InstanceState[Any]]:
    if write is not Write.DELETE:
        history = state.attrs[name].history
        found = [*(history.added or ()), *(history.deleted or ())]
    elif _goes_along(state.mapper, name):
        return
    else:
        found = list(get_history(state.obj(), name).sum())  # loads what the flush would load
    for instance in found:
        if instance is not None:
            yield inspect(instance)


@remembered
def _goes_along(mapper: Mapper[Any], name: str) -> bool:
    """Whether the other side are parts of the row that is deleted, under the same lock."""
    root = document_root(mapper)
    parts = () if root is None else parts_of(root)
    return any(part.name == name and mapper.isa(part.owner) for part in parts)


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


def _warn(text: str) -> None:
    frame = frame_of_program()
    if frame is None:
        warnings.warn(text, UnlockedWriteWarning, stacklevel=2)
    else:
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        where = (frame.f_code.co_filename, frame.f_lineno)
        warnings.warn_explicit(text, UnlockedWriteWarning, *where, registry=registry)


# Rows that the flush writes, of the classes of declared documents alone.

_guards: WeakKeyDictionary[Session, ref[Guard]] = WeakKeyDictionary()
_watched: WeakSet[Mapper[Any]] = WeakSet()


@follow_declared
def _watch(mappers: Collection[Mapper[Any]]) -> None:
    for mapper in _not_within(mappers):
        if mapper not in _watched:
            _watched.add(mapper)
            follow(mapper)
            for name, listener in _LISTENERS.items():
                event.listen(mapper, name, listener, raw=True, propagate=True)


def _not_within(mappers: Collection[Mapper[Any]]) -> Iterator[Mapper[Any]]:
    """Those that are no subclass of another, whose listeners they have already."""
    for mapper in mappers:
        if not any(mapper is not other and mapper.isa(other) for other in mappers):
            yield mapper


def _before(write: Write) -> Any:
    def check(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> None:
        session = state.session
        reference = None if session is None else _guards.get(session)
        guard = None if reference is None else reference()
        if guard is not None:
            guard.check_row(state, write)

    return check


_LISTENERS = {
    "before_insert": _before(Write.INSERT),
    "before_update": _before(Write.UPDATE),
    "before_delete": _before(Write.DELETE),
}
