"""The guard for statements: ORM-enabled and Core UPDATE, DELETE and INSERT in a session.

Which documents an UPDATE or DELETE would touch, the database is asked with its own WHERE
clause; those that an INSERT would add rows to stand in its values.  What cannot be told,
such as INSERT .. FROM SELECT, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import (
    Alias,
    BindParameter,
    ClauseElement,
    Insert,
    Null,
    Update,
    inspect,
    select,
)
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import UnmappedColumnError

from ..dialects import schema_translation
from ..documents import (
    UNKNOWN,
    HeaderResolver,
    Part,
    declared_roots,
    document_key,
    document_root,
    has_null,
    key_attributes,
    mapper_cache,
    parts_of,
    parts_with_detail,
    root_of,
)
from ..lock_info import Identity
from ..session_ref import weakly
from ..sqlalchemy_internals import is_flushing, values_of
from ..statements import chunks, key_in
from ..transaction import Ledger
from .flush import FlushGuard, Write

Row = Mapping[Any, Any]


class DmlGuard:
    """What one session may write by statements."""

    def __init__(self, session: Session, guard: FlushGuard, ledger: Ledger) -> None:
        self._session = weakly(session)
        self._guard = guard
        self._ledger = ledger

    @contextmanager
    def statement(
        self, statement: Any, parameters: Any, how: Mapping[str, Any] = MappingProxyType({})
    ) -> Iterator[None]:
        """Check the statement, which is executed in the block.

        :param how: the execution options and bind arguments that it is executed with.
        :raises UnlockedWrite: it would write to a document that is not held ForUpdate.
        """
        targets = _targets_of(statement) if self._guard.enabled else ()
        if not targets:
            yield
            return
        options = {**statement.get_execution_options(), **how.get("execution_options", {})}
        wanted = self._session().autoflush and options.get("autoflush", True)
        if wanted and not is_flushing(self._session()):
            self._session().flush()  # as the execution would do, and what is asked depends on it
        self._guard.reset_warnings()
        born: list[tuple[_Target, list[Identity]]] = []
        with self._session().no_autoflush:
            for target in targets:
                if isinstance(statement, Insert):
                    born.append(
                        (target, self._check_insert(target, statement, _listed(parameters)))
                    )
                elif self._guard.active:
                    self._check_touched(target, statement, parameters, how)
        yield
        for target, identities in born:
            self._bear(target, identities)

    @contextmanager
    def objects(self, instances: Collection[Any]) -> Iterator[None]:
        """Check objects that are written in the block without a flush.

        :raises UnlockedWrite: one of them is of a document that is not held ForUpdate.
        """
        new = [state for one in instances if (state := instance_state(one)).key is None]
        with self._session().no_autoflush:
            self._guard.check_objects(instances)
        yield
        for state in new:
            self._guard.add_inserted(state)

    @contextmanager
    def rows(self, mapper: Mapper[Any], rows: Sequence[Row], write: Write) -> Iterator[None]:
        """Check rows that are written by primary key in the block.

        :raises UnlockedWrite: one of them is of a document that is not held ForUpdate.
        """
        targets = _targets(mapper) if self._guard.enabled else ()
        self._guard.reset_warnings()
        with self._session().no_autoflush:
            born = [(target, self._check_rows(target, rows, write)) for target in targets]
        yield
        for target, identities in born:
            self._bear(target, identities)

    def _bear(self, target: _Target, identities: Iterable[Identity]) -> None:
        for identity in identities:
            self._ledger.add_inserted(document_key(target.root, identity))

    def _check_rows(self, target: _Target, rows: Iterable[Row], write: Write) -> list[Identity]:
        """Return the headers among new rows."""
        named = [target.named(row) for row in rows]
        if self._guard.active:
            membership = HeaderResolver(self._session(), target.root, ask=True)
            if write is Write.UPDATE:
                self._check_keys(target, [target.identity(row) for row in named], membership)
            for row in named:
                self._check_owners(target, row, membership, write)
        new = write is Write.INSERT and target.is_header
        return [key for row in named if (key := target.identity(row)) is not None] if new else []

    def _check_insert(self, target: _Target, statement: Insert, given: list[Row]) -> list[Identity]:
        values = values_of(statement)
        if self._guard.active and (values.from_select or values.overwrites):
            by = "INSERT .. FROM SELECT" if values.from_select else "an INSERT that may overwrite"
            self._refuse(target, UNKNOWN, Write.INSERT, f"{by}, which does not tell of what,")
            return []
        rows = [{**row, **more} for row in values.rows or ({},) for more in given or ({},)]
        new = self._check_rows(target, rows, Write.INSERT)
        return [] if values.conditional else new

    def _check_touched(
        self, target: _Target, statement: Any, parameters: Any, how: Mapping[str, Any]
    ) -> None:
        update = isinstance(statement, Update)
        if target.unclear:
            by = "a statement that does not tell of what,"
            self._refuse(target, UNKNOWN, Write.UPDATE if update else Write.DELETE, by)
            return
        set_here = [target.named(row) for row in values_of(statement).rows] if update else []
        write = Write.UPDATE if update else Write.DELETE
        membership = HeaderResolver(self._session(), target.root, ask=True)
        if update and target.by_key and isinstance(parameters, (list, tuple)):
            rows = [{**row, **given} for row in set_here or [{}] for given in parameters]
            self._check_rows(target, rows, write)
            return
        options = schema_translation(statement.get_execution_options())
        touched = select(*target.columns).distinct().execution_options(**options)
        if statement.whereclause is not None:
            touched = touched.where(statement.whereclause)
        for given in _listed(parameters) or [{}]:
            for row in set_here or [{}] if update else ():
                self._check_owners(target, {**row, **target.named(given)}, membership, write)
            for found in self._session().execute(touched, given, **how).all():
                self._check_row(target, tuple(found), membership, write)

    def _check_keys(
        self, target: _Target, keys: Sequence[Identity | None], membership: HeaderResolver
    ) -> None:
        known = [key for key in keys if key is not None]
        assert target.mapper is not None
        columns = [getattr(target.mapper.class_, name) for name in key_attributes(target.mapper)]
        for some in chunks(known):
            touched = select(*target.columns).where(key_in(columns, some))
            for row in self._session().execute(touched).all():
                self._check_row(target, tuple(row), membership, Write.UPDATE)

    def _check_row(
        self, target: _Target, row: Identity, membership: HeaderResolver, write: Write
    ) -> None:
        """A row of ``target.columns``."""
        if target.by_identity:
            assert target.mapper is not None
            self._check_headers(target, membership.headers_of_row(target.mapper, row), write)
            return
        for link in target.links:
            key, row = row[: len(link.names)], row[len(link.names) :]
            if not has_null(key):
                self._check_headers(target, membership.headers_of_row(link.owner, key), write)

    def _check_owners(
        self, target: _Target, row: Row, membership: HeaderResolver, write: Write
    ) -> None:
        """The documents that a new row, or new values of a row, come to."""
        for link in target.links:
            key = tuple(_literal(row.get(name), row) for name in link.names)
            given = [name for name in link.names if name in row]
            partly = write is Write.UPDATE and 0 < len(given) < len(key)
            by_default = write is Write.INSERT and link.has_default and len(given) < len(key)
            if partly or by_default or any(isinstance(value, ClauseElement) for value in key):
                by = f"a statement whose {' and '.join(link.names)} does not tell of what,"
                self._refuse(target, UNKNOWN, write, by)
            elif not has_null(key):
                owners = membership.owners_by_reference(link.named, key) if link.named else [key]
                for owner in owners:
                    headers = membership.headers_of_row(link.owner, owner)
                    self._check_headers(target, headers, write)

    def _check_headers(self, target: _Target, headers: Iterable[Identity], write: Write) -> None:
        for identity in headers:
            if not self._guard.permits(target.root, identity):
                self._refuse(target, identity, write)

    def _refuse(
        self, target: _Target, identity: Identity, write: Write, by: str = "a statement"
    ) -> None:
        what = f"{target.name} rows would be {write.value} by {by}"
        self._guard.refuse(target.root, identity, what)


class _Link(NamedTuple):
    """A foreign key of the rows that are written, to their owners."""

    owner: Mapper[Any]
    names: tuple[str, ...]  # in order of the owner's primary key
    named: Part | None = None  # they refer to another key
    has_default: bool = False  # a row that does not name them has an owner all the same


class _Target(NamedTuple):
    """The rows that a statement writes: of a mapped class, or of an association table."""

    root: Mapper[Any]
    name: str
    mapper: Mapper[Any] | None
    links: tuple[_Link, ...]
    by_identity: bool  # the foreign keys do not tell all
    by_key: bool  # SQLAlchemy takes a list of parameters for rows by primary key
    columns: tuple[Any, ...]  # what tells the documents of a row
    unclear: bool = False  # the statement cannot be made a SELECT of these rows

    @property
    def table(self) -> Any:
        return None if self.mapper is None else self.mapper.local_table

    @property
    def is_header(self) -> bool:
        return self.mapper is not None and root_of(self.mapper) is self.root

    def named(self, row: Row) -> Row:
        """The row by names of attributes."""
        return {self._name(column): value for column, value in row.items()}

    def identity(self, row: Row) -> Identity | None:
        """The primary key of a row, where it is given."""
        assert self.mapper is not None
        key = tuple(_literal(row.get(name), row) for name in key_attributes(self.mapper))
        return None if any(v is None or isinstance(v, ClauseElement) for v in key) else key

    def _name(self, column: Any) -> str:
        key: str = column if isinstance(column, str) else column.key
        if self.mapper is None or key in self.mapper.attrs:
            return key
        columns = self.mapper.local_table.columns
        try:
            return self.mapper.get_property_by_column(columns[key]).key
        except (KeyError, UnmappedColumnError):
            return key


def _targets_of(statement: Any) -> tuple[_Target, ...]:
    entity = None
    with suppress(KeyError):  # a Core statement whose WHERE names mapped attributes has none
        entity = statement.entity_description.get("entity")
    if entity is not None:
        mapper = inspect(entity).mapper
        found = _targets(mapper) or _tables().get(mapper.local_table, ())  # an association's
    elif isinstance(statement.table, Alias):
        found = _unclear(statement.table.element)
    else:
        found = _tables().get(statement.table, ())
    if isinstance(statement, Update):  # MySQL can write to several tables
        names = {name for row in values_of(statement).rows for name in row}
        tables = {getattr(name, "table", None) for name in names}
        own = {statement.table, *(target.table for target in found)}
        found += tuple(one for table in tables - own - {None} for one in _unclear(table))
    return found


def _unclear(table: Any) -> tuple[_Target, ...]:
    return tuple(target._replace(unclear=True) for target in _tables().get(table, ()))


@mapper_cache
def _targets(mapper: Mapper[Any], *, by_key: bool = True) -> tuple[_Target, ...]:
    root = document_root(mapper)
    if root is not None:
        return (_target(mapper, root, by_key=by_key),)
    # Subclasses may be documents, and their rows are rows of this class.
    roots = ((one, document_root(one)) for one in mapper.self_and_descendants)
    return tuple(_target(one, root, by_key=by_key) for one, root in roots if root is not None)


def _target(mapper: Mapper[Any], root: Mapper[Any], *, by_key: bool) -> _Target:
    entity, parts = mapper.class_, parts_with_detail(root, mapper)
    links = [
        _Link(part.owner, part.foreign_key, has_default=_has_default(mapper, part.foreign_key))
        for part in parts
        if part.foreign_key
    ]
    by_identity = root_of(mapper) is root or len(links) < len(parts)
    names = key_attributes(mapper) if by_identity else [n for link in links for n in link.names]
    links += [
        _Link(part.owner, tuple(name for name, _ in part.reference), part)
        for part in parts
        if part.reference
    ]
    columns = tuple(getattr(entity, name) for name in names)
    return _Target(root, entity.__name__, mapper, tuple(links), by_identity, by_key, columns)


def _has_default(mapper: Mapper[Any], names: Iterable[str]) -> bool:
    columns = [column for name in names for column in mapper.column_attrs[name].columns]
    return any(
        getattr(one, "default", None) or getattr(one, "server_default", None) for one in columns
    )


@mapper_cache
def _tables() -> Mapping[Any, tuple[_Target, ...]]:
    """The tables of all declared documents, for statements that name no class."""
    found: dict[Any, tuple[_Target, ...]] = {}
    for root in declared_roots():
        for part in parts_of(root):
            secondary = part.relationship.secondary
            if secondary is not None:
                remote = dict(part.relationship.synchronize_pairs)
                columns = [remote[column] for column in part.owner.primary_key]
                link = (_Link(part.owner, tuple(str(column.key) for column in columns)),)
                found[secondary] = (
                    _Target(root, str(secondary), None, link, False, False, tuple(columns)),
                )
        for mapper in (root, *(part.detail for part in parts_of(root))):
            for one in mapper.self_and_descendants:
                if one.local_table not in found:
                    base = one.inherits if one.single and one.inherits is not None else one
                    targets = _targets(base, by_key=False)
                    found[one.local_table] = targets or _targets(one, by_key=False)
    return found


def _listed(parameters: Any) -> list[Row]:
    if parameters is None:
        return []
    return [parameters] if isinstance(parameters, Mapping) else list(parameters)


def _literal(value: Any, row: Row) -> Any:
    """The plain value, from the parameters of the row where they have it."""
    if isinstance(value, Null):
        return None
    if not isinstance(value, BindParameter):
        return value
    if value.key in row:
        return row[value.key]
    return value if value.required else value.effective_value
