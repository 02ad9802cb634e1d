"""The full check of written rows, which asks the database where the loaded objects do not tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from sqlalchemy import ClauseElement
from sqlalchemy.orm import InstanceState, Mapper, RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from ...core.documents import (
    UNKNOWN,
    HeaderResolver,
    compares_in_python,
    document_root,
    header_identity,
    is_row_of_root,
    key_attributes,
    mapper_of,
    state_in_session,
)
from ...core.lock_info import DocumentKey, Identity, document_label, public_key
from ...core.sqlalchemy_internals import modified_states, new_states
from ..kinds import kinds_of
from .refusals import Refusal, Refusals
from .rules import States, WriteRules, names_of_parts, rules_for
from .targets import Target
from .untold import (
    attribute_of,
    headers_of_owner,
    inserts_header,
    is_new_header,
    key_in_table,
    owner_in_association,
    stored_headers_of,
    untold_targets,
)
from .writes import Write

WrittenRow = tuple[InstanceState[Any], WriteRules, Write]


@dataclass(eq=False)
class FullCheck:
    """The full check of the rows of one flush, which share what is read from the database.

    :param new: objects that are inserted along; None: all new ones of the session.
    :param written: the rows are in the database already.
    """

    refusals: Refusals
    session: Session
    new: States | None = None
    written: bool = False
    resolvers: dict[Mapper[Any], HeaderResolver] = field(default_factory=dict)
    found: list[Refusal] = field(default_factory=list)

    def check(self, to_check: Iterable[WrittenRow]) -> None:
        """Refuse the writes to documents that are not held."""
        to_check = [*to_check]
        self._check_untold(to_check)
        for state, rules, write in to_check:
            if self.written:  # first: other checks read what has expired
                self._check_unread(rules, state, write)
                self._check_kinds(rules, state, write)
            if self.new is not None:  # written without a flush, so that nothing checks it after
                self._check_generated(rules, state, write)
            if rules.root is not None:
                self._check_documents(rules.root, state, write, None)
            self._check_related(state, rules, write)
        if self.found:
            self.refusals.refuse_all(self.found, self.resolvers, self._expected())

    def _check_related(self, state: InstanceState[Any], rules: WriteRules, write: Write) -> None:
        """Check the rows that the flush of the row's relationships writes to."""
        related = rules.deletes if write is Write.DELETE else rules.updates
        # When the row is written, most of these have events of their own.
        unseen_alone = self.written and write is not Write.DELETE
        for name, root in related.items():
            if unseen_alone and name not in rules.unseen:
                continue
            through = f"{_row(state)}.{name}", f"{state.class_.__name__}.{name}"
            for other in _touched(state, name, write):
                self._check_documents(root, other, Write.UPDATE, through)

    def _check_documents(
        self,
        root: Mapper[Any],
        state: InstanceState[Any],
        write: Write,
        through: tuple[str, str] | None,
    ) -> None:
        for identity in self._resolver(root).headers(state):
            if self.refusals.permits(root, identity) or (root.class_, identity) in self._inserted:
                continue
            by = through
            if through is None and write is Write.UPDATE:
                attribute = _changed(state, root)
                if attribute is None:
                    return
                by = attribute, attribute
            self.found.append(_refusal(root, identity, state, write, by))

    def _check_unread(self, rules: WriteRules, state: InstanceState[Any], write: Write) -> None:
        """Check a row that was written with values that only the database knows.

        Such are an SQL expression that a listener has set, and a default of the server.
        """
        names = sorted(rules.moves & state.expired_attributes)
        if names and rules.root is not None:
            by = (names[0], names[0]) if write is Write.UPDATE else None
            identity = tuple(state.mapper.primary_key_from_instance(state.obj()))
            for header in self._resolver(rules.root).stored_headers(state.mapper, identity):
                self._refuse_unless_permitted(rules.root, header, state, write, by)

    def _check_generated(self, rules: WriteRules, state: InstanceState[Any], write: Write) -> None:
        """Check a row whose document the table sets when it is written."""
        if rules.generated is None or rules.root is None:
            return
        given = state.dict if write is Write.INSERT else state.committed_state
        names = sorted(rules.generated.by(write) - given.keys())
        if names:
            by = names[0], names[0]
            self.found.append(_refusal(rules.root, UNKNOWN, state, write, by))

    def _refuse_unless_permitted(
        self,
        root: Mapper[Any],
        identity: Identity,
        state: InstanceState[Any],
        write: Write,
        by: tuple[str, str] | None,
    ) -> None:
        if not self.refusals.permits(root, identity):
            self.found.append(_refusal(root, identity, state, write, by))

    def _check_untold(self, to_check: Iterable[WrittenRow]) -> None:
        """Check the rows whose class does not tell their documents; new ones when they are written."""
        by_class = defaultdict(list)
        for state, rules, write in to_check:
            if rules.untold and (self.written or write is not Write.INSERT):
                by_class[state.mapper, write].append(state)
        for (mapper, write), states in by_class.items():
            for target, table in untold_targets(mapper).items():
                self._check_rows_of(target, table, states, write)

    def _check_rows_of(self, target: Target, table: Any, states: States, write: Write) -> None:
        """Check those of these objects whose rows in the table are of this target."""
        written = self.written and write is not Write.DELETE
        keys = (
            (state, self._key_or_check(state, target, table, write, written=written))
            for state in _written_in(states, target, table, write)
        )
        known = {key: state for state, key in keys if key is not None}
        resolver, is_new = self._resolver(target.root), is_new_header(target, table)
        for key, header in stored_headers_of(self.session, resolver, target, table, known):
            if is_new and write is Write.INSERT:
                self.refusals.documents.add_inserted((target.root.class_, header))
            state = known.get(key) or next(iter(known.values()))
            self._refuse_row_of(target, header, state, table, write)

    def _key_or_check(
        self, state: InstanceState[Any], target: Target, table: Any, write: Write, *, written: bool
    ) -> Identity | None:
        """Return the key of an object's row in the table; None if it was checked without the database."""
        owner = owner_in_association(state, target, written=written)
        key = None if owner else key_in_table(state, target, table, written=written)
        if key is not None:
            return key
        resolver = self._resolver(target.root)
        told = (UNKNOWN,) if owner is None else headers_of_owner(resolver, target, owner)
        for header in told:
            self._refuse_row_of(target, header, state, table, write)
        return None

    def _refuse_row_of(
        self,
        target: Target,
        header: Identity,
        state: InstanceState[Any],
        table: Any,
        write: Write,
    ) -> None:
        if write is Write.INSERT and inserts_header(state, target.root, header):
            return
        name = _changed_in(state, target, table) if write is Write.UPDATE else None
        by = None if name is None else (name, name)
        self._refuse_unless_permitted(target.root, header, state, write, by)

    def _check_kinds(self, rules: WriteRules, state: InstanceState[Any], write: Write) -> None:
        """Check a row that is written as one of another class: only the database knows its owners.

        Before it is written the row is found as one of the class that it leaves.
        """
        if write is not Write.UPDATE:
            return
        for name in rules.kind.intersection({*state.committed_state, *state.expired_attributes}):
            by = f"{_row(state)}.{name}", f"{state.class_.__name__}.{name}"
            for kind in _kinds(state, name):
                root = document_root(kind)
                if root is None or state.mapper.isa(kind):
                    continue
                for identity in self._resolver(root).stored_headers(kind, state.identity or ()):
                    self._refuse_unless_permitted(root, identity, state, Write.UPDATE, by)

    def _resolver(self, root: Mapper[Any]) -> HeaderResolver:
        resolver = self.resolvers.get(root)
        if resolver is None:
            resolver = self.resolvers[root] = HeaderResolver(self.session, root, ask=True)
        return resolver

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
        found = frozenset([*map(document_of_header, new), *self._new_keys()])
        # Else the key is that of another object, which this flush deletes, or gives another key.
        return frozenset(one for one in found if one and not self._is_stored(one))

    def _is_stored(self, key: DocumentKey) -> bool:
        return state_in_session(self.session, mapper_of(key[0]), key[1]) is not None

    def _new_keys(self) -> Iterator[DocumentKey]:
        for state in modified_states(self.session):
            rules = rules_for(state.mapper)
            key = None if rules is None else new_key_of(state, rules)
            if rules is None or key is None:
                continue
            if self.refusals.documents.may_write((rules.entity, state.identity or ())):
                yield rules.entity, key


def _kinds(state: InstanceState[Any], name: str) -> Iterator[Mapper[Any]]:
    """Yield the classes of which the row is, and was; all, where only the database knows that."""
    history = state.attrs[name].history
    if history.deleted:
        yield from chain.from_iterable(kinds_of(state.mapper, value) for value in history.sum())
    else:
        yield from state.mapper.polymorphic_map.values()


def document_of_header(state: InstanceState[Any]) -> DocumentKey | None:
    """Return the document whose header the object is; None if it is no header."""
    root = document_root(state.mapper)
    if root is None or not is_row_of_root(state.mapper, root):
        return None
    return root.class_, header_identity(state, root)


def new_key_of(state: InstanceState[Any], rules: WriteRules) -> Identity | None:
    """Return the primary key that is set on a header; None if none is, or not a plain value."""
    if rules.root is None or rules.keys.isdisjoint(state.committed_state):
        return None
    key = tuple(state.dict.get(name) for name in key_attributes(rules.root))
    return None if any(one is None or isinstance(one, ClauseElement) for one in key) else key


def _refusal(
    root: Mapper[Any],
    identity: Identity,
    state: InstanceState[Any],
    write: Write,
    by: tuple[str, str] | None,
) -> Refusal:
    words = f"would be {write.value}"
    one, all_of_them = (f" in {name!r}" for name in by) if by else ("", "")
    what = f"{_row(state)} {words}{one}"
    rows = f"{state.class_.__name__} rows {words}{all_of_them}"
    return Refusal(root, identity, what, rows, state)


def _touched(state: InstanceState[Any], name: str, write: Write) -> Iterator[InstanceState[Any]]:
    """Yield the objects that the relationship writes to; new ones are checked by themselves."""
    attribute = state.attrs[name]
    history = attribute.history
    if write is not Write.DELETE:
        found = [*(history.added or ()), *(history.deleted or ())]
    elif state.mapper.relationships[name].passive_deletes:
        found = list(history.sum())
    else:
        found = list(attribute.load_history().sum())  # as the flush would do
    states = (instance_state(instance) for instance in found if instance is not None)
    yield from (one for one in states if one.key is not None)


def _changed(state: InstanceState[Any], root: Mapper[Any]) -> str | None:
    """Return the first attribute whose change is a change of the document."""
    mapper = state.mapper
    parts = names_of_parts(root, mapper)
    names = [one.key for one in mapper.column_attrs if one.key in state.manager]
    names += [
        relationship.key
        for relationship in mapper.relationships
        if relationship.key in parts or relationship.direction is RelationshipDirection.MANYTOONE
    ]
    return next((name for name in names if state.attrs[name].history.has_changes()), None)


def _written_in(states: States, target: Target, table: Any, write: Write) -> States:
    """Return those of these objects whose write is one of the target's row."""
    if write is not Write.UPDATE:
        return states
    return [state for state in states if _changed_in(state, target, table)]


def _changed_in(state: InstanceState[Any], target: Target, table: Any) -> str | None:
    """Return the first attribute whose change is one of the target's row."""
    tables = [table] if target.mapper is None else target.mapper.tables
    columns = chain.from_iterable(one.columns for one in tables)
    names = filter(None, (attribute_of(state.mapper, column) for column in columns))
    return next((name for name in names if state.attrs[name].history.has_changes()), None)


def _row(state: InstanceState[Any]) -> str:
    if state.identity is None:
        return f"a new {state.class_.__name__}"
    return document_label(state.class_, public_key(state.identity))
