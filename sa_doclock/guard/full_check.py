"""The full check of written rows, which asks the database if the loaded objects do not suffice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import ClauseElement
from sqlalchemy.orm import InstanceState, Mapper, RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from ..core.documents import (
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
from ..core.same_tables import same_attribute
from ..keys import DocumentKey, Identity, document_label, public_key
from ..kinds import kinds_of
from ..sqlalchemy_internals import modified_states, new_states
from .refusals import Refusal, Refusals
from .rules import (
    States,
    WriteRules,
    headers_of_owner,
    inserts_header,
    is_new_header,
    key_in_table,
    names_of_parts,
    owner_in_association,
    rules_for,
    stored_headers_of,
    untold_targets,
)
from .targets import Target, Way

By = tuple[str, str] | None
"""The change by which a row is written to a document: with the row's key, and without it."""


class WrittenRow(NamedTuple):
    """An object whose row is written."""

    state: InstanceState[Any]
    rules: WriteRules
    way: Way

    @property
    def label(self) -> str:
        """The row in the words of an error."""
        if self.state.identity is None:
            return f"a new {self.state.class_.__name__}"
        return document_label(self.state.class_, public_key(self.state.identity))

    def through(self, name: str) -> By:
        """Return the change of this attribute, which also writes other rows."""
        return f"{self.label}.{name}", f"{self.state.class_.__name__}.{name}"

    def refusal(self, root: Mapper[Any], identity: Identity, by: By) -> Refusal:
        """Return the refusal of the row's write to this document."""
        words = f"would be {self.way.value}"
        one, all_of_them = (f" in {name!r}" for name in by) if by else ("", "")
        rows = f"{self.state.class_.__name__} rows {words}{all_of_them}"
        return Refusal(root, identity, f"{self.label} {words}{one}", rows, self.state)


class FullCheck:
    """The full check of the rows of one flush; the rows of one call share their database reads.

    :param new: objects inserted in the same flush; None: all new ones of the session.
    :param written: the rows are in the database already.
    """

    def __init__(
        self,
        refusals: Refusals,
        session: Session,
        new: States | None = None,
        *,
        written: bool = False,
    ) -> None:
        self.refusals, self.session = refusals, session
        self.new, self.written = new, written
        self.resolvers: dict[Mapper[Any], HeaderResolver] = {}
        self.found: list[Refusal] = []

    def check(self, to_check: Iterable[WrittenRow]) -> None:
        """Refuse writes to documents that are not locked; ask the database again."""
        self.resolvers, self.found = {}, []
        rows, by_root = [*to_check], defaultdict(list)
        for row in rows:
            if row.rules.root is not None:
                by_root[row.rules.root].append(row.state)
        for root, states in by_root.items():
            self._resolver(root).read_ahead(states)
        self._check_untold(rows)
        for row in rows:
            rules, state = row.rules, row.state
            if self.written:  # first: other checks read expired attributes
                self._check_unread(row)
                self._check_kinds(row)
            elif not rules.kind.isdisjoint(state.committed_state):
                self.refusals.memory.held.pop(state, None)  # written, it shows more
            if self.new is not None:  # written without a flush: no later check
                self._check_generated(row)
            if rules.root is not None:
                self._check_documents(rules.root, row)
            self._check_related(row)
        if self.found:
            self.refusals.refuse_all(self.found, self.resolvers, self._expected())

    def _check_generated(self, row: WrittenRow) -> None:
        rules, state = row.rules, row.state
        if rules.generated is not None and rules.root is not None:
            given = state.dict if row.way is Way.INSERT else state.committed_state
            for name in sorted(rules.generated.by(row.way) - given.keys())[:1]:
                self.found.append(row.refusal(rules.root, UNKNOWN, (name, name)))

    def _check_related(self, row: WrittenRow) -> None:
        """Check the rows that the flush of the row's relationships writes."""
        related = row.rules.deletes if row.way is Way.DELETE else row.rules.updates
        # While the row is written, most of these have their own events.
        unseen_alone = self.written and row.way is not Way.DELETE
        for name, root in related.items():
            if not unseen_alone or name in row.rules.unseen:
                touched = _touched(row.state, name, row.way)
                states = [*map(instance_state, touched)]
                self._resolver(root).read_ahead(states)
                for other in states:
                    changed = WrittenRow(other, row.rules, Way.UPDATE)
                    self._check_documents(root, changed, row.through(name))

    def _check_documents(self, root: Mapper[Any], row: WrittenRow, by: By = None) -> None:
        for identity in self._resolver(root).headers(row.state):
            key = (root.class_, identity)
            if self.refusals.permits(root, identity):
                continue
            self.refusals.memory.held.pop(row.state, None)  # check it again when written
            if self._is_inserted(key, row.state):
                continue
            if by is None and row.way is Way.UPDATE:
                attribute = _changed(row.state, root)
                if attribute is None:
                    return
                by = attribute, attribute
            self.found.append(row.refusal(root, identity, by))

    def _check_unread(self, row: WrittenRow) -> None:
        """Check a row that was written with values that only the database knows.

        Examples are a listener's SQL expression, and a default of the server.
        """
        state, root = row.state, row.rules.root
        names = sorted(row.rules.moves & row.rules.columns & state.expired_attributes)
        if names and root is not None:
            by = (names[0], names[0]) if row.way is Way.UPDATE else None
            identity = tuple(state.mapper.primary_key_from_instance(state.obj()))
            for header in self._resolver(root).stored_headers(state.mapper, identity):
                self._refuse_unless_permitted(root, header, row, by)

    def _refuse_unless_permitted(
        self, root: Mapper[Any], identity: Identity, row: WrittenRow, by: By
    ) -> None:
        if not self.refusals.permits(root, identity):
            self.found.append(row.refusal(root, identity, by))

    def _check_untold(self, to_check: Iterable[WrittenRow]) -> None:
        """Check rows whose class does not show their documents; new ones when they are written."""
        by_class = defaultdict(list)
        for row in to_check:
            if row.rules.untold and (self.written or row.way is not Way.INSERT):
                by_class[row.state.mapper, row.way].append(row)
        for (mapper, way), rows in by_class.items():
            for target, table in untold_targets(mapper).items():
                self._check_rows_of(target, table, rows, way)

    def _check_rows_of(
        self, target: Target, table: Any, rows: Iterable[WrittenRow], way: Way
    ) -> None:
        """Check the objects whose rows in the table are of this target."""
        resolver = self._resolver(target.root)
        is_new = way is Way.INSERT and is_new_header(target, table)
        asked, found = self._headers_told(target, table, rows, way)
        for key, header in stored_headers_of(self.session, resolver, target, table, asked):
            if is_new:
                self.refusals.add_inserted((target.root.class_, header))
            found.append((*(asked.get(key) or next(iter(asked.values()))), header))
        for row, by, header in found:
            if way is not Way.INSERT or not inserts_header(row.state, target.root, header):
                self._refuse_unless_permitted(target.root, header, row, by)

    def _headers_told(
        self, target: Target, table: Any, rows: Iterable[WrittenRow], way: Way
    ) -> tuple[dict[Identity, tuple[WrittenRow, By]], list[tuple[WrittenRow, By, Identity]]]:
        """Return rows by key whose headers only the database knows; and all others, with headers."""
        asked: dict[Identity, tuple[WrittenRow, By]] = {}
        found: list[tuple[WrittenRow, By, Identity]] = []
        resolver, written = self._resolver(target.root), self.written and way is not Way.DELETE
        for row in rows:
            name = _changed_in(row.state, target, table) if way is Way.UPDATE else None
            if way is Way.UPDATE and name is None:  # the row is in another table
                continue
            by = None if name is None else (name, name)
            owner = owner_in_association(row.state, target, written=written)
            key = None if owner else key_in_table(row.state, target, table, written=written)
            if key is not None:
                asked[key] = row, by
            else:
                headers = headers_of_owner(resolver, target, owner) if owner else (UNKNOWN,)
                found += ((row, by, header) for header in headers)
        return asked, found

    def _check_kinds(self, row: WrittenRow) -> None:
        """Check a row that becomes one of another class: only the database knows its owners.

        Before the write, it is found as a row of its old class.
        """
        state = row.state
        if row.way is not Way.UPDATE:
            return
        for name in row.rules.kind.intersection(
            {*state.committed_state, *state.expired_attributes}
        ):
            history = state.attrs[name].history
            kinds: Iterable[Mapper[Any]] = state.mapper.polymorphic_map.values()
            if history.deleted:  # otherwise only the database knows the row's old class
                kinds = chain.from_iterable(
                    kinds_of(state.mapper, value) for value in history.sum()
                )
            for kind in kinds:
                root = document_root(kind)
                if root is not None and not state.mapper.isa(kind):
                    for header in self._resolver(root).stored_headers(kind, state.identity or ()):
                        self._refuse_unless_permitted(root, header, row, row.through(name))

    def _resolver(self, root: Mapper[Any]) -> HeaderResolver:
        resolver = self.resolvers.get(root)
        if resolver is None:
            resolver = self.resolvers[root] = HeaderResolver(self.session, root, ask=True)
        return resolver

    def _expected(self) -> set[type[Any]]:
        """Return the classes of headers inserted in this flush whose keys Python may not compare."""
        if self.written:
            return set()
        return {
            key[0]
            for key, state in self._coming.items()
            if not compares_in_python(mapper_of(key[0])) and self._is_inserted(key, state)
        }

    def _is_inserted(self, key: DocumentKey, row: InstanceState[Any]) -> bool:
        """Return whether the flush inserts the document's header, or gives a locked one this key.

        The header may be this row, with a key that the database has just generated.
        """
        states = row, self._coming.get(key, row)
        # A listener may have changed its key since.
        if all(self._key_to_come(state) != key for state in states):
            return False
        # Otherwise another object has the key, which this flush deletes or gives a new key.
        return state_in_session(self.session, mapper_of(key[0]), key[1]) is None

    @cached_property
    def _coming(self) -> Mapping[DocumentKey, InstanceState[Any]]:
        """Objects by the documents that the flush creates, as known at the first access."""
        new = new_states(self.session) if self.new is None else self.new
        states = [*new, *modified_states(self.session)]
        found = zip(map(self._key_to_come, states), states, strict=True)
        return {key: state for key, state in found if key is not None}

    def _key_to_come(self, state: InstanceState[Any]) -> DocumentKey | None:
        """Return the document whose header is inserted, or whose key a locked header gets."""
        if state.key is None:
            return document_of_header(state)
        rules = rules_for(state.mapper)
        key = None if rules is None else new_key_of(state, rules)
        if rules is None or key is None:
            return None
        held = self.refusals.may_write((rules.entity, state.identity or ()))
        return (rules.entity, key) if held else None


def document_of_header(state: InstanceState[Any]) -> DocumentKey | None:
    """Return the document whose header the object is, or None."""
    root = document_root(state.mapper)
    if root is None or not is_row_of_root(state.mapper, root):
        return None
    return root.class_, header_identity(state, root)


def new_key_of(state: InstanceState[Any], rules: WriteRules) -> Identity | None:
    """Return the primary key that is set on a header; None if none is set, or not a plain value."""
    if rules.root is None or rules.keys.isdisjoint(state.committed_state):
        return None
    key = tuple(state.dict.get(name) for name in key_attributes(rules.root))
    return None if any(value is None or isinstance(value, ClauseElement) for value in key) else key


def _touched(state: InstanceState[Any], name: str, way: Way) -> list[Any]:
    """Return the objects that the relationship writes; new ones are checked separately."""
    attribute = state.attrs[name]
    history = attribute.history
    if way is not Way.DELETE:
        found = [*(history.added or ()), *(history.deleted or ())]
    elif state.mapper.relationships[name].passive_deletes:
        found = list(history.sum())
    else:
        found = list(attribute.load_history().sum())  # as the flush would do
    return [
        instance
        for instance in found
        if instance is not None and instance_state(instance).key is not None
    ]


def _changed(state: InstanceState[Any], root: Mapper[Any]) -> str | None:
    mapper = state.mapper
    parts = names_of_parts(root, mapper)
    names = [attr.key for attr in mapper.column_attrs if attr.key in state.manager]
    names += [
        relationship.key
        for relationship in mapper.relationships
        if relationship.key in parts or relationship.direction is RelationshipDirection.MANYTOONE
    ]
    return next((name for name in names if state.attrs[name].history.has_changes()), None)


def _changed_in(state: InstanceState[Any], target: Target, table: Any) -> str | None:
    tables = [table] if target.mapper is None else target.mapper.tables
    columns = chain.from_iterable(written.columns for written in tables)
    names = filter(None, (same_attribute(state.mapper, column) for column in columns))
    return next((name for name in names if state.attrs[name].history.has_changes()), None)
