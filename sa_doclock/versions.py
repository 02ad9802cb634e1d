"""The version of a document: a caller's old version is refused, and a change of a part raises it.

The version is the ``version_id_col`` of the header, which SQLAlchemy raises in each UPDATE of the
header's row: https://docs.sqlalchemy.org/en/20/orm/versioning.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import TypeDecorator, event, inspect, select, update
from sqlalchemy.orm import InstanceState, Mapper, Session, object_mapper
from sqlalchemy.orm.attributes import flag_modified, instance_state, set_committed_value

from .core.documents import (
    HeaderResolver,
    Part,
    declared_roots,
    declares,
    document_root,
    has_null,
    header_identity,
    is_row_of_root,
    is_second_class,
    mapper_cache,
    part_as_mapped,
    parts_with_detail,
)
from .core.ledger import ledger_of
from .core.statements import chunks, key_in
from .core.transaction import LockRequest
from .dialects import SCHEMA_OPTION
from .errors import LockMisuse, StaleDocument
from .keys import Identity, key_text
from .kinds import kind_attribute, kinds_of
from .sqlalchemy_internals import deleted_states, new_states, states_to_flush


class DocumentVersions:
    """The versions of the documents of one session."""

    def check_request(self, request: LockRequest) -> None:
        """See :class:`Condition`: whether its rows have a version to compare."""
        if "version" in request.given:
            assert request.mapper is not None
            _check_version(request.mapper, request.given["version"])

    def check_found(self, request: LockRequest, found: object) -> None:
        """See :class:`Condition`.  :raises StaleDocument: the caller has seen another version."""
        if "version" in request.given:
            assert request.mapper is not None
            actual = getattr(found, _attribute(request.mapper))
            wanted = request.given["version"]
            if actual != wanted:
                raise StaleDocument(
                    f"the document is at version {key_text(actual)}, but the caller read version "
                    f"{key_text(wanted)}; reload it and ask the user again",
                    expected=wanted,
                    found=actual,
                )

    def follow(self, session: Session) -> None:
        """Listen to the flushes of a session that was just created."""
        if _any_versioned():
            _followed.add(session)
            event.listen(session, "before_flush", _raise_after_all_others)

    def before_flush(self, session: Session) -> None:
        """Run after the listeners that the program has added since.

        SQLAlchemy calls the listeners of one session in order, and after those of classes.
        """
        if not _any_versioned():
            return
        if session in _followed:
            event.remove(session, "before_flush", _raise_after_all_others)
            event.listen(session, "before_flush", _raise_after_all_others)
        else:  # the class was declared after the session was created
            self.follow(session)  # from the next flush on
            _raise_versions(session)


# Threads: add() and a search in a set are atomic.
_followed: Final[WeakSet[Session]] = WeakSet()
"""The sessions that raise versions after all listeners of the program, which may write parts too."""


@mapper_cache
def _any_versioned() -> bool:
    """Return whether any declared document raises its version for its parts."""
    return any(declares(root, "version") for root in declared_roots())


def _raise_after_all_others(session: Session, *_: object) -> None:
    if any(states_to_flush(session)):
        _raise_versions(session)


def _check_version(mapper: Mapper[Any], version: Any) -> None:
    """Raise before any statement if rows of this class cannot be compared with the version.

    :raises LockMisuse: the class has no ``version_id_col``.
    :raises TypeError: the version has another type, such as the text of an HTTP header.
    """
    column = mapper.version_id_col
    if column is None:
        raise LockMisuse(
            f"{mapper.class_.__name__} has no version to compare with {key_text(version)}: map a column "
            "as version_id_col, or leave out version="
        )
    wanted: type[Any] = object
    if not isinstance(column.type, TypeDecorator):  # it alone knows the type of its values
        with suppress(NotImplementedError):
            wanted = column.type.python_type
    # An SQL expression would be compared in SQL, never in Python.
    if not isinstance(version, wanted) or inspect(version, raiseerr=False) is not None:
        raise TypeError(
            f"the version of {mapper.class_.__name__} is of type {wanted.__name__}, "
            f"not {key_text(version)}"
        )


@mapper_cache
def _attribute(mapper: Mapper[Any]) -> str:
    assert mapper.version_id_col is not None  # checked by _check_version() and @document
    return mapper.get_property_by_column(mapper.version_id_col).key


@mapper_cache
def counts_up(mapper: Mapper[Any]) -> bool:
    """Return whether the next version of a row is its version plus 1."""
    generator: Any = mapper.version_id_generator
    with suppress(Exception):  # the program's generator may want other values
        return [generator(None), generator(7)] == [1, 8]
    return False


def raise_versions(session: Session, root: Mapper[Any], identities: Iterable[Identity]) -> None:
    """Raise the version of these documents at once: a statement has written their rows.

    Except a header whose version the program has set, which the next flush writes.
    """
    keys = [
        identity for identity in identities if not _is_set(_loaded(session, root, identity), root)
    ]
    column: Any = root.version_id_col
    if not callable(root.version_id_generator):  # the server raises it
        other: Any = root.column_attrs[_other_attribute(root) or ""].columns[0]
        _update(session, root, keys, {other: other})
        expire_versions(session, ((root, key) for key in keys))
    elif counts_up(root):
        _update(session, root, keys, {column: column + 1})
        for key in keys:
            _note_raised(_loaded(session, root, key), root, None)
    else:
        for key in keys:
            of_key = select(column).where(key_in(root.primary_key, [key]))
            options = _options_at(session, root)
            binds = _binds_at(session, root, of_key)
            now = Session.execute(
                session, of_key, execution_options=options, bind_arguments=binds
            ).scalar()
            value = root.version_id_generator(now)
            _update(session, root, [key], {column: value})
            _note_raised(_loaded(session, root, key), root, value)


def _is_set(header: Any | None, root: Mapper[Any]) -> bool:
    if header is None:
        return False
    return bool(instance_state(header).attrs[_attribute(root)].history.added)


def _note_raised(header: Any | None, root: Mapper[Any], value: Any) -> None:
    """Set the new version of a loaded header; None: increment it.

    Expiring it instead would fail under asyncio, where no access can load.
    """
    name = _attribute(root)
    if header is not None and name in (loaded := instance_state(header).dict):
        set_committed_value(header, name, loaded[name] + 1 if value is None else value)


def expire_versions(session: Session, documents: Iterable[tuple[Mapper[Any], Identity]]) -> None:
    """Expire the versions of these documents."""
    for root, identity in documents:
        header = _loaded(session, root, identity)
        if header is not None:
            session.expire(header, [_attribute(root)])


def _loaded(session: Session, root: Mapper[Any], identity: Identity) -> Any | None:
    return session.identity_map.get(root.identity_key_from_primary_key(identity))


def _update(
    session: Session, root: Mapper[Any], keys: Sequence[Identity], values: Mapping[Any, Any]
) -> None:
    table: Any = root.version_id_col.table if root.version_id_col is not None else None
    options = _options_at(session, root)
    for some in chunks(keys):
        statement = update(table).where(key_in(root.primary_key, some)).values(values)
        # Session.execute() itself: the session's own would check this as the program's statement.
        binds = _binds_at(session, root, statement)
        Session.execute(session, statement, execution_options=options, bind_arguments=binds)


def _binds_at(session: Session, root: Mapper[Any], statement: Any) -> dict[str, Any]:
    """Return the bind arguments that send a statement to the database of the locked documents."""
    place = ledger_of(session).place_of(root.class_)
    own = session.get_bind(root, clause=statement)
    if place is None or place.engine.pool is own.engine.pool:
        return {"mapper": root}
    return {"mapper": root, "bind": place.engine}


def _options_at(session: Session, root: Mapper[Any]) -> dict[str, Any]:
    """Return the execution options that send a statement to the schema of the locked documents."""
    place = ledger_of(session).place_of(root.class_)
    return {SCHEMA_OPTION: dict(place.schemas)} if place is not None and place.schemas else {}


def _raise_versions(session: Session) -> None:
    """Raise the version of each document of which this flush writes a part, once.

    Headers that are inserted or deleted in the same flush stay unchanged.
    """
    deleted = deleted_states(session)
    for header in list(_changed_headers(session)):
        if instance_state(header) in deleted:
            continue
        mapper = object_mapper(header)
        name = _attribute(mapper)
        if instance_state(header).attrs[name].history.added:
            continue  # the program has set it
        generator = mapper.version_id_generator
        if callable(generator):
            setattr(header, name, generator(getattr(header, name)))
        else:  # any UPDATE of the row makes the server raise it
            other = _other_attribute(mapper)
            assert other is not None  # checked by @document
            getattr(header, other)
            flag_modified(header, other)


def _changed_headers(session: Session) -> Iterator[Any]:
    left_alone = set(_inserted_or_written_by_second_classes(session))
    found = dict.fromkeys(
        document
        for document in _documents_of(session, _written(session))
        if document not in left_alone
    )
    for root, identity in found:
        with session.no_autoflush:
            header = session.get(root.class_, identity)
        if header is not None:
            yield header


def _inserted_or_written_by_second_classes(
    session: Session,
) -> Iterator[tuple[Mapper[Any], Identity]]:
    """Yield the headers that this flush inserts, or writes as objects of another class.

    Do not select an inserted header: another transaction may have inserted it in the meantime.
    """
    deleted, new = deleted_states(session), new_states(session)
    for state in _written(session):
        root = document_root(state.mapper)
        if root is None or not is_row_of_root(state.mapper, root):
            continue
        written = state in deleted or state.mapper.version_id_col is not None
        if state in new or (written and is_second_class(state.mapper, root)):
            yield root, header_identity(state, root)


def _documents_of(
    session: Session, states: Iterable[InstanceState[Any]]
) -> Iterator[tuple[Mapper[Any], Identity]]:
    resolvers: dict[Mapper[Any], HeaderResolver] = {}

    def resolver(root: Mapper[Any]) -> HeaderResolver:
        if root not in resolvers:
            resolvers[root] = HeaderResolver(session, root, ask=True)
        return resolvers[root]

    written, by_root = [*states], defaultdict(list)
    for state in written:
        root = document_root(state.mapper)
        if root is not None and declares(root, "version"):
            by_root[root].append(state)
    for root, some in by_root.items():
        resolver(root).read_ahead(some)
        yield from _known(root, chain.from_iterable(map(resolver(root).headers, some)))
    for state in written:
        for root, part in _parts_of_new_kind(state):
            owner = _owner_of_new_kind(session, state, part)
            yield from _known(root, resolver(root).headers_of_row(part.owner, owner))


def _known(
    root: Mapper[Any], headers: Iterable[Identity]
) -> Iterator[tuple[Mapper[Any], Identity]]:
    return ((root, identity) for identity in headers if identity and not has_null(identity))


def _parts_of_new_kind(state: InstanceState[Any]) -> Iterator[tuple[Mapper[Any], Part]]:
    """Yield roots and parts to which a row may belong once it is written as another class.

    Only parts whose foreign key is in the row itself: a class with its own table has no row there.
    """
    for mapper in _new_kinds(state):
        root = document_root(mapper)
        if root is not None and declares(root, "version"):
            yield from (
                (root, part) for part in parts_with_detail(root, mapper) if part.foreign_key
            )


def _new_kinds(state: InstanceState[Any]) -> Iterator[Mapper[Any]]:
    """Yield the classes of the same table as which an object's row is about to be written."""
    mapper = state.mapper
    name = kind_attribute(mapper)
    value = (
        state.dict.get(name) if state.key is not None and name in state.committed_state else None
    )
    for kind in () if value is None else kinds_of(mapper, value):
        if kind.local_table is mapper.base_mapper.local_table and not mapper.isa(kind):
            yield kind


def _owner_of_new_kind(session: Session, state: InstanceState[Any], part: Part) -> Identity:
    """Return the foreign key of a row, even if its old class does not map it."""
    names = part_as_mapped(part, state.mapper).foreign_key
    if names is not None:
        return tuple(getattr(state.obj(), name) for name in names)
    table, key = state.mapper.local_table, state.identity or ()
    columns = [part.detail.column_attrs[name].columns[0] for name in part.foreign_key or ()]
    row = zip(state.mapper.primary_key, key, strict=True)
    statement = select(*(table.c[column.key] for column in columns))
    found = session.execute(statement.where(*(column == value for column, value in row))).first()
    return () if found is None else tuple(found)


def _written(session: Session) -> Iterator[InstanceState[Any]]:
    changed = (dirty for dirty in session.dirty if session.is_modified(dirty))
    for instance in chain(list(session.new), list(changed), list(session.deleted)):
        yield instance_state(instance)


@mapper_cache
def _other_attribute(mapper: Mapper[Any]) -> str | None:
    """Return an attribute whose UPDATE makes the server raise the version, or None."""
    column = mapper.version_id_col
    for attribute in mapper.column_attrs:
        (first, *_) = attribute.columns
        own = column is not None and getattr(first, "table", None) is column.table
        if own and first is not column and not first.primary_key:
            return attribute.key
    return None
