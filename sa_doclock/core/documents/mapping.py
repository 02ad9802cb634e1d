"""The header of a mapped class: its table, its row and its primary key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, update_wrapper
from itertools import chain
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Row,
    Table,
    TextClause,
    UniqueConstraint,
    event,
    inspect,
)
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import InstanceState, Mapper, RelationshipProperty, class_mapper
from sqlalchemy.orm.exc import UnmappedClassError
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Alias, FromClause, FromGrouping, Join, SelectBase
from sqlalchemy.sql.visitors import iterate

from ...errors import LockNotSupported
from ...keys import DocumentKey, Identity, key_text
from .key_values import INTEGER_LIMIT, key_value, plain_type

P = ParamSpec("P")
T = TypeVar("T")

# Global, like SQLAlchemy's event for configured mappers, which clears all caches.
# Threads: two that miss a cached value at once compute the same; only imports append.
_clear_functions: list[Callable[[], None]] = []
_cleared = object()  # a new object each time the caches are emptied
_TRIES: Final = 100  # far more than the threads that configure mappers at once


def mapper_cache(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a function of mappers until mappers or documents change."""

    @lru_cache(maxsize=1024)
    def cached(*args: P.args, **kwargs: P.kwargs) -> T:
        listen_to_mappers()  # here, in a miss: a hit must cost nothing more
        for _ in range(_TRIES):
            started = _cleared
            found = function(*args, **kwargs)
            # Otherwise another thread emptied the cache, which would keep this stale value.
            if _cleared is started:
                return found
        raise RuntimeError(
            "mappers were configured, or documents declared, each time that a mapper was read: a "
            "listener for after_configured may create new classes each time"
        )

    _clear_functions.append(cached.cache_clear)
    return cast("Callable[P, T]", update_wrapper(cached, function))


def entity_cache(function: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Cache the results of a function of an entity, as :func:`mapper_cache` does, for a class or mapper.

    An ``aliased()`` belongs to one statement, and is not cached.
    """
    cached = mapper_cache(function)

    def of_entity(entity: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        call = cached if isinstance(entity, (type, Mapper)) else function
        return call(entity, *args, **kwargs)

    return cast("Callable[Concatenate[Any, P], T]", update_wrapper(of_entity, function))


def clear_with_mappers(clear: Callable[[], None]) -> None:
    """Call a function whenever the caches are emptied."""
    _clear_functions.append(clear)


def clear_mapper_caches() -> None:
    """Empty all caches of :func:`mapper_cache`."""
    global _cleared  # noqa: PLW0603  # whichever thread sets it last, it is another object
    _cleared = object()
    for clear in _clear_functions:
        clear()


@lru_cache(maxsize=1)
def listen_to_mappers() -> None:
    """Clear the caches whenever SQLAlchemy configures mappers, or a class is unmapped.

    Called at the first use, not on import: importing sa_doclock alone adds no listener.
    """
    event.listen(Mapper, "after_configured", clear_mapper_caches)
    event.listen(object, "class_uninstrument", lambda _: clear_mapper_caches(), propagate=True)


def mapper_of(entity: Any) -> Mapper[Any]:
    """Return the configured mapper of a class.

    :raises TypeError: it is not a mapped class.
    :raises sqlalchemy.exc.ArgumentError: this first use configured the mappers, and a mapping or
        the declaration of a document is wrong.
    """
    try:
        return class_mapper(entity)
    except (UnmappedClassError, ArgumentError) as error:
        if isinstance(entity, type) and isinstance(inspect(entity, raiseerr=False), Mapper):
            raise
        raise TypeError(f"entity must be a mapped class, not {entity!r}") from error


@mapper_cache
def root_of(mapper: Mapper[Any]) -> Mapper[Any]:
    """Return the mapper of the header: every row of its hierarchy has a row in its table."""
    while mapper.inherits is not None and not mapper.concrete:
        mapper = mapper.inherits
    return mapper


@mapper_cache
def hierarchy_of(mapper: Mapper[Any]) -> tuple[Mapper[Any], ...]:
    """Return the class and the subclasses whose rows are read with it.

    Concrete subclasses, which have their own tables, are read only with a UNION of the tables.
    """
    root, read = root_of(mapper), mapper.with_polymorphic_mappers
    return tuple(
        descendant
        for descendant in mapper.self_and_descendants
        if root_of(descendant) is root or descendant in read
    )


def relationships_of(mapper: Mapper[Any]) -> list[RelationshipProperty[Any]]:
    """Return the relationships of the class and of the subclasses that are read with it."""
    found = (relationship for each in hierarchy_of(mapper) for relationship in each.relationships)
    return list(dict.fromkeys(found))


def own_table(mapper: Mapper[Any]) -> Table:
    """Return the header's table, not an alias of it."""
    table = root_of(mapper).local_table
    assert isinstance(table, Table)  # checked by header_table()
    return table


@mapper_cache
def lockable_root(mapper: Mapper[Any]) -> Mapper[Any]:
    """Return the root of a class that has a header row; raise as :func:`header_table` does."""
    header_table(mapper.class_)
    return root_of(mapper)


@entity_cache
def header_table(entity: Any) -> Table | Alias:
    """Return the header's table, whose row is locked, or its alias inside an ``aliased()``."""
    found = inspect(entity)
    mapper = class_mapper(found.mapper.class_)
    name, root = mapper.class_.__name__, root_of(mapper).local_table
    for table in tables_of(entity):
        if table is root or (isinstance(table, Alias) and table.element is root):
            return table
    if isinstance(found, Mapper):
        source = type(mapper.selectable).__name__
        raise LockNotSupported(f"{name} is read from a {source}, whose rows cannot be locked")
    raise LockNotSupported(
        f"{name} is aliased as a subquery, whose rows cannot be locked; use aliased(..., flat=True)"
    )


def tables_of(entity: Any) -> Iterator[Table | Alias]:
    """Yield the tables, or their aliases, that a select of this entity reads."""
    return tables_within([inspect(entity).selectable])


def tables_within(selectables: Iterable[FromClause]) -> Iterator[Table | Alias]:
    """Yield the tables, or their aliases, that these FROM clauses join."""
    for selectable in from_clauses_within(selectables):
        if isinstance(selectable, Table) or (
            isinstance(selectable, Alias) and isinstance(selectable.element, Table)
        ):
            yield selectable


def from_clauses_within(selectables: Iterable[FromClause]) -> Iterator[FromClause]:
    """Yield the joined elements of these FROM clauses: tables, subqueries, and any others."""
    to_read = list(selectables)
    while to_read:
        selectable = to_read.pop()
        if isinstance(selectable, Join):
            to_read += [selectable.right, selectable.left]
        elif isinstance(selectable, FromGrouping):  # a join in parentheses
            to_read.append(selectable.element)
        else:
            yield selectable


def loaded_mappers(entity: Any) -> tuple[Mapper[Any], ...]:
    """Return the mappers whose columns a select of this entity reads.

    They include those of polymorphic loading by the same statement: ``polymorphic_load="inline"``,
    ``with_polymorphic="*"``, ``with_polymorphic()``.
    """
    found = inspect(entity)
    return tuple(dict.fromkeys((found.mapper, *found.with_polymorphic_mappers)))


@entity_cache
def spans_rows(entity: Any, *, undeferred: bool = False) -> bool:
    """Return whether a row of this entity consists of several rows.

    It does for joined inheritance, and if a subquery of a ``column_property()`` reads other rows: a
    statement that waits for the header's lock may show those as of before its wait.

    :param entity: a class, its mapper or an ``aliased()``.
    :param undeferred: options may load deferred columns, and set a ``query_expression()``.
    """
    if len(list(tables_of(entity))) > 1:
        return True
    for attribute in chain.from_iterable(mapper.column_attrs for mapper in loaded_mappers(entity)):
        if undeferred and ("query_expression", True) in attribute.strategy_key:
            return True  # the option may give it a subquery
        if (undeferred or not attribute.deferred) and any(map(has_subquery, attribute.columns)):
            return True
    return False


@mapper_cache
def columns_read(mapper: Mapper[Any]) -> frozenset[str]:
    """Return the attributes of columns that a SELECT of this class reads: all but deferred ones."""
    return frozenset(attr.key for attr in mapper.column_attrs if not attr.deferred)


def has_expired(state: InstanceState[Any], mapper: Mapper[Any]) -> bool:
    """Return whether an access to a column of this class would read the object's row again."""
    # Relationships and deferred columns stay expired after a SELECT of the row; so do a subclass's
    # columns after a SELECT of its superclass.
    return not state.expired_attributes.isdisjoint(columns_read(mapper))


def unread_columns(entity: Any) -> tuple[ColumnElement[Any], ...]:
    """Return the columns of the header's table that a SELECT of this class does not read.

    They are deferred, or belong to another class of single-table inheritance.

    :param entity: a mapped class or ``aliased()``.
    """
    attributes = inspect(entity).mapper.column_attrs
    read = {
        column for attribute in attributes if not attribute.deferred for column in attribute.columns
    }
    columns = header_table(entity).columns
    own = own_table(inspect(entity).mapper).columns
    return tuple(columns[attr.key] for attr in own if attr not in read)


def has_subquery(expression: ClauseElement) -> bool:
    """Return whether the expression may read rows other than its own."""
    return any(
        isinstance(element, SelectBase)
        or "select" in _text_of(element).lower()
        or may_read_rows(element)
        for element in iterate(expression)
    )


def may_read_rows(element: object) -> bool:
    """Return whether it calls a function that may read rows, as of the start of its statement.

    https://www.postgresql.org/docs/current/xfunc-volatility.html
    """
    if not isinstance(element, FunctionElement):
        return False
    packages = getattr(element, "packagenames", ())
    return bool(packages) or getattr(element, "name", "").lower() not in _OF_ARGUMENTS


def _text_of(element: Any) -> str:
    """Return the SQL of ``text()`` and ``literal_column()``, or "" for any other element."""
    if isinstance(element, TextClause):
        return element.text
    return str(element.name) if getattr(element, "is_literal", False) else ""


_OF_ARGUMENTS: Final = frozenset(
    """
    abs aggregate_strings avg ceil ceiling char_length character_length coalesce concat
    concat_ws count current_date current_setting current_time current_timestamp current_user date date_part
    date_trunc extract floor format greatest ifnull instr json_extract jsonb_extract_path_text
    json_value least left length localtime localtimestamp lower lpad ltrim max md5 min mod now
    nullif octet_length position power random replace reverse right round row_number rpad rtrim
    session_user sign sqrt strftime substr substring sum sysdate to_char trim trunc upper user
    year
    """.split()  # noqa: SIM905
)
"""Functions of the databases that read only their arguments and the rows of the SELECT."""

PRIMARY: Final = "PRIMARY"
"""The name of the primary key among the indexes of a table."""


@mapper_cache
def index_of_key(mapper: Mapper[Any]) -> str | None:
    """Return the name of the unique index on the header's key, if its Table has one.

    The mapped key may differ from the primary key of the table.
    """
    table, key = own_table(mapper), set(root_of(mapper).primary_key)
    if set(table.primary_key) == key:
        return PRIMARY
    unique: Iterable[Any] = chain(table.constraints, table.indexes)
    for constraint in unique:
        is_unique = isinstance(constraint, UniqueConstraint) or getattr(constraint, "unique", False)
        if is_unique and set(constraint.columns) == key and isinstance(constraint.name, str):
            return constraint.name
    return None


@mapper_cache
def key_attributes(mapper: Mapper[Any]) -> tuple[str, ...]:
    """Return the attributes that map the primary key, in mapper order."""
    return tuple(mapper.get_property_by_column(column).key for column in mapper.primary_key)


def key_columns(entity: Any) -> list[Any]:
    """Return the attributes of a class or an ``aliased()`` that form its primary key."""
    return [getattr(entity, name) for name in key_attributes(inspect(entity).mapper)]


@mapper_cache
def plain_key_type(mapper: Mapper[Any]) -> type[Any] | None:
    """Return the type of most keys, int or str; None for composite and other keys."""
    return plain_type(mapper.primary_key[0].type) if len(mapper.primary_key) == 1 else None


def identity_of(mapper: Mapper[Any], ident: Any) -> Identity:
    """Return the primary key as a tuple in mapper order.

    :param ident: a scalar, a tuple in mapper order, or a dict by attribute name, as for
        ``Session.get()``.
    :raises ValueError: wrong number or names of values, a NULL key, or a value that the column
        cannot have.
    :raises TypeError: not a value, but an object, an SQL expression, a list.
    """
    # Most keys are one plain number or text, and the tests below take longer than everything else.
    if type(ident) is plain_key_type(mapper) and (
        -INTEGER_LIMIT <= ident < INTEGER_LIMIT if type(ident) is int else ident.isprintable()
    ):
        return (ident,)
    return _converted(mapper, ident)


def _converted(mapper: Mapper[Any], ident: Any) -> Identity:
    names = key_attributes(mapper)
    if isinstance(ident, Mapping):
        values = tuple(ident[name] for name in names) if set(ident) == set(names) else ()
    else:
        values = tuple(ident) if isinstance(ident, (tuple, list, Row)) else (ident,)
    if len(values) != len(names):
        raise ValueError(
            f"{mapper.class_.__name__} has the primary key ({', '.join(names)}), "
            f"not {key_text(ident)}"
        )
    if all(value is None for value in values):
        raise ValueError(
            f"{mapper.class_.__name__} {key_text(ident)}: no row has a NULL primary key"
        )
    return columns_values(mapper, mapper.primary_key, values, ident)


def columns_values(
    mapper: Mapper[Any], columns: Iterable[ColumnElement[Any]], values: Identity, ident: Any
) -> Identity:
    """Return the values of a key in the form of these columns' rows.

    :param ident: the key as given, for the text of an error.
    """
    types = (column.type for column in columns)
    try:
        return tuple(key_value(*pair) for pair in zip(types, values, strict=True))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{mapper.class_.__name__} {key_text(ident)}: {error}") from None


@mapper_cache
def key_order(mapper: Mapper[Any]) -> Callable[[Identity], Any] | None:
    """Return the sort function of keys; None: their natural order.

    SQLAlchemy's own types define it, and a flush sorts rows by it: for an Enum, by the stored
    values.  A type of the program without an order in Python can define a ``sort_key_function``.
    """
    functions = [column.type.sort_key_function for column in mapper.primary_key]
    if not any(functions):
        return None

    def stored(identity: Identity) -> Any:
        pairs = zip(functions, identity, strict=True)
        return tuple(value if sort is None else sort(value) for sort, value in pairs)

    return stored


@mapper_cache
def row_order(mapper: Mapper[Any]) -> Callable[[Any], Any]:
    """Return the sort function that orders objects by key."""
    stored, key_of = key_order(mapper), mapper.primary_key_from_instance
    return key_of if stored is None else lambda instance: stored(tuple(key_of(instance)))


def document_key(mapper: Mapper[Any], identity: Identity) -> DocumentKey:
    """Return the document's key in the ledger."""
    return root_of(mapper).class_, identity
