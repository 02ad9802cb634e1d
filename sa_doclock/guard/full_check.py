"""The full check of written rows, which asks the database if the loaded objects do not suffice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import ClauseElement
from sqlalchemy.orm import InstanceState, Mapper, RelationshipDirection
from sqlalchemy.orm.attributes import instance_state

from ..core.documents import (
    UNKNOWN,
    HeaderResolver,
    ask,
    compares_in_python,
    declares,
    document_root,
    has_null,
    header_identity,
    is_row_of_root,
    key_attributes,
    mapper_of,
    state_in_session,
)
from ..core.same_tables import same_attribute
from ..keys import DocumentKey, Identity, document_label, public_key
from ..sqlalchemy_internals import modified_states, new_states
from .refusals import Refusal, Refusals
from .rules import WriteRules, is_told, names_of_parts, rules_for, targets_in
from .targets import Target, Way, creates_header, is_plain
from .touched import RowHeaders, key_of_table


class WrittenRow(NamedTuple):
    """An object whose row is written."""

    state: InstanceState[Any]
    rules: WriteRules
    way: Way

    def refusal(self, root: Mapper[Any], identity: Identity, by: str | None) -> Refusal:
        """Return the refusal of the row's write to this document.

        :param by: the attribute by whose change it is written, if known.
        """
        name, key = self.state.class_, self.state.identity
        subject = f"a new {name.__name__}" if key is None else document_label(name, public_key(key))
        did = f"would be {self.way.value}" + (f" in {by!r}" if by else "")
        return Refusal(root, identity, subject, did, self.state)


class FullCheck:
    """The full check of the rows of one flush; the rows of one call share their database reads.

    :param written: the rows are in the database already.
    """

    def __init__(self, refusals: Refusals, *, written: bool = False) -> None:
        self.refusals, self.session = refusals, refusals.session()
        self.written = written
        self.resolvers: dict[Mapper[Any], HeaderResolver] = {}

    def check(self, to_check: Iterable[WrittenRow]) -> None:
        """Refuse writes to documents that are not locked; ask the database again."""
        self.resolvers = {}
        rows, by_root = [*to_check], defaultdict(list)
        for row in rows:
            if row.rules.root is not None:
                by_root[row.rules.root].append(row.state)
        for root, states in by_root.items():
            self._resolver(root).read_ahead(states)
        found = [*self._of_stored(rows), *chain.from_iterable(map(self._of_row, rows))]
        self.refusals.allow(found, self.resolvers, self._expected)

    # Each of these yields refusals for documents of written rows; allow() drops those of locked documents.

    def _of_row(self, row: WrittenRow) -> Iterator[Refusal]:
        rules, state, root = row.rules, row.state, row.rules.root
        if self.written:  # first, before other checks read expired attributes
            yield from self._of_unread(row)
        elif not rules.kind.isdisjoint(state.committed_state):
            self.refusals.memory.held.pop(state, None)  # written, it shows more
        if root is not None:
            yield from self._of_documents(root, row)
        yield from self._of_related(row)

    def _of_related(self, row: WrittenRow) -> Iterator[Refusal]:
        """Yield the refusals for rows that the flush of the row's relationships writes."""
        related = row.rules.deletes if row.way is Way.DELETE else row.rules.updates
        # While the row is written, most of these have their own events.
        unseen_alone = self.written and row.way is not Way.DELETE
        for name, root in related.items():
            if not unseen_alone or name in row.rules.unseen:
                touched = _touched(row.state, name, row.way)  # this keeps them alive
                states = [*map(instance_state, touched)]
                self._resolver(root).read_ahead(states)
                for other in states:
                    changed = WrittenRow(other, row.rules, Way.UPDATE)
                    yield from self._of_documents(
                        root, changed, f"{row.state.class_.__name__}.{name}"
                    )

    def _of_documents(
        self, root: Mapper[Any], row: WrittenRow, by: str | None = None
    ) -> Iterator[Refusal]:
        for identity in self._resolver(root).headers(row.state):
            if self.refusals.permits(root, identity):
                continue
            self.refusals.memory.held.pop(row.state, None)  # check it again when written
            if self._is_inserted((root.class_, identity), row.state):
                continue
            if identity is UNKNOWN and self._shows_it_when_written(row.state, root):
                continue
            if by is None and row.way is Way.UPDATE:
                by = _changed(row.state, root)
                if by is None:
                    return
            yield row.refusal(root, identity, by)

    def _shows_it_when_written(self, state: InstanceState[Any], root: Mapper[Any]) -> bool:
        """Return whether an SQL expression names the owner, which the check after the write knows.

        Not with versions: that of the new owner is raised before the write.
        """
        expressions = (isinstance(value, ClauseElement) for value in state.dict.values())
        return any(expressions) and not declares(root, "version")

    def _of_unread(self, row: WrittenRow) -> Iterator[Refusal]:
        """Yield the refusals for a row that was written with values that only the database knows.

        Examples are a listener's SQL expression, and a default of the server.
        """
        state, root = row.state, row.rules.root
        names = sorted(row.rules.moves & row.rules.columns & state.expired_attributes)
        if names and root is not None:
            by = names[0] if row.way is Way.UPDATE else None
            identity = tuple(state.mapper.primary_key_from_instance(state.obj()))
            for header in self._resolver(root).stored_headers(state.mapper, identity):
                yield row.refusal(root, header, by)

    def _of_stored(self, rows: Iterable[WrittenRow]) -> Iterator[Refusal]:
        """Yield the refusals for rows whose objects do not show their documents: the database does."""
        by_class = defaultdict(list)
        for row in rows:
            by_class[row.state.mapper, row.way].append(row)
        for (mapper, way), of_class in by_class.items():
            for target, table in targets_in(mapper).items():
                is_new = way is Way.INSERT and creates_header(target, table)
                asked = filter(partial(self._is_asked_about, target), of_class)
                for row, by, header in self._headers_in(target, table, asked):
                    if is_new and header is not UNKNOWN:
                        self.refusals.add_inserted((target.root.class_, header))
                    # The INSERT of an object may create this header too, as for a class on a join().
                    elif way is not Way.INSERT or header != _values(
                        row.state, target.root.primary_key, written=True
                    ):
                        yield row.refusal(target.root, header, by)

    def _is_asked_about(self, target: Target, row: WrittenRow) -> bool:
        """Return whether the object may be a row of the target without showing it."""
        mapper, changed = (
            row.state.mapper,
            {*row.state.committed_state, *row.state.expired_attributes},
        )
        if not is_told(mapper, target):
            return self.written or row.way is not Way.INSERT
        # A new class: before the write, the row was found as one of its old class.
        has_new = self.written and row.way is Way.UPDATE and not row.rules.kind.isdisjoint(changed)
        return has_new and target.mapper is not None and not mapper.isa(target.mapper)

    def _headers_in(
        self, target: Target, table: Any, rows: Iterable[WrittenRow]
    ) -> Iterator[tuple[WrittenRow, str, Identity]]:
        """Yield the objects whose rows in the table are of this target, with their headers."""
        asked: dict[Identity, tuple[WrittenRow, str]] = {}
        names = key_of_table(target, table, target.source)
        key, columns = [*names.values()], [*map(table.columns.__getitem__, names)]
        headers = RowHeaders(target, self._resolver(target.root))
        for row in rows:
            by = _changed_in(row.state, target, table) if row.way is Way.UPDATE else ""
            if by is None:  # the row is in another table
                continue
            written = self.written and row.way is not Way.DELETE
            # The object of an association may name the owner itself.
            own = map(table.columns.__getitem__, target.read if target.mapper is None else ())
            owner = _values(row.state, own, written=written)
            identity = _values(row.state, columns, written=written)
            if owner is not None:
                yield from ((row, by, header) for header in headers.of_stored(owner))
            elif identity is None:
                yield row, by, UNKNOWN
            else:
                asked[identity] = row, by
        yield from self._stored_headers(headers, key, asked)

    def _stored_headers(
        self,
        headers: RowHeaders,
        key: Sequence[Any],
        asked: Mapping[Identity, tuple[WrittenRow, str]],
    ) -> Iterator[tuple[WrittenRow, str, Identity]]:
        binds = headers.target.bind_arguments
        for question in headers.select(key, [*asked]):
            for found in ask(self.session, question, bind_arguments=binds):
                identity, read = tuple(found[: len(key)]), tuple(found[len(key) :])
                # One row may have an equal key in another spelling.
                of_row = asked.get(identity) or next(iter(asked.values()))
                for header in headers.of_stored(read, written=True):
                    yield (*of_row, header)

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
        states = [*new_states(self.session), *modified_states(self.session)]
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
    key = tuple(map(state.dict.get, key_attributes(rules.root)))
    return key if is_plain(key) else None


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
    return _first_changed(state, names)


def _changed_in(state: InstanceState[Any], target: Target, table: Any) -> str | None:
    tables = [table] if target.mapper is None else target.mapper.tables
    columns = chain.from_iterable(written.columns for written in tables)
    names = (same_attribute(state.mapper, column) for column in columns)
    expired = state.expired_attributes  # includes attributes set to an SQL expression
    return _first_changed(state, (name for name in names if name), expired)


def _first_changed(
    state: InstanceState[Any], names: Iterable[str], also: Collection[str] = ()
) -> str | None:
    changed = (name for name in names if name in also or state.attrs[name].history.has_changes())
    return next(changed, None)


def _values(state: InstanceState[Any], columns: Iterable[Any], *, written: bool) -> Identity | None:
    """Return the values that an object has for these columns, or None if it lacks one.

    :param written: after the write; otherwise before it.
    """
    names = [same_attribute(state.mapper, column) for column in columns]
    found = tuple(None if name is None else _value(state, name, written=written) for name in names)
    return None if not found or has_null(found) else found


def _value(state: InstanceState[Any], name: str, *, written: bool) -> Any:
    if written and name in state.dict:
        return state.dict[name]
    history = state.attrs[name].load_history()
    values = history.deleted or history.unchanged or ()
    # SQLAlchemy does not load the key of an expired object if the table has no primary key.
    key = dict(zip(key_attributes(state.mapper), state.identity or (), strict=False))
    return next(iter(values), key.get(name))
