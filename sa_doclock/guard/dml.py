"""The guard for statements: ORM-enabled and Core UPDATE, DELETE and INSERT in a session.

The documents that an UPDATE or DELETE would write are selected by the statement's own WHERE clause;
those to which an INSERT adds rows are in its values, or in its SELECT.  Afterwards, the written
rows are counted, and the result has the generated keys of new headers.

atomic_update() makes a relative UPDATE of headers, for which the database's own row lock suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import BindParameter, ClauseElement, Insert, Update
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine import Row as ResultRow
from sqlalchemy.exc import ArgumentError, InvalidRequestError
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_state

from ..core.documents import declares, document_key, has_null, key_attributes
from ..core.same_tables import is_class_elsewhere, is_elsewhere, mapped_table
from ..dml_internals import returned_columns, values_of
from ..keys import DocumentKey, Identity
from ..sqlalchemy_internals import autoflush, buffer_rows
from ..versions import counts_up
from .refusals import Refusals
from .statement_check import ATOMIC, StatementCheck
from .targets import (
    Execution,
    Row,
    Target,
    Write,
    entity_of,
    is_header_target,
    mapper_named,
    named_alone,
    other_tables,
    table_of,
    targets_by_key,
    targets_of,
    targets_of_entity,
    targets_of_new_kinds,
    targets_of_new_rows,
    writes_by_key,
)
from .touched import (
    brings_into_its_where,
    covers,
    rows_written,
    select_number,
    tables_named,
)


@contextmanager
def checked_statement(
    refusals: Refusals, statement: Any, parameters: Any, how: Mapping[str, Any]
) -> Iterator[Callable[[Any], Any]]:
    """Check the statement, and execute it in the block.

    Yields a function that returns the statement's result after it has recorded the keys of new
    headers in it.

    :param how: the execution options and bind arguments of the execution.
    :raises UnlockedWrite: it would write to a document that is not locked ForUpdate.
    """
    session, run = refusals.session(), Execution(refusals.session(), statement, parameters, how)
    targets: tuple[Target, ...] = ()
    if refusals.enabled:
        targets = targets_here(run)
    if targets:
        # The execution would flush too, but the rows that the check finds depend on it.
        options = {**statement.get_execution_options(), **how.get("execution_options", {})}
        autoflush(session, options)
    write = Write.INSERT if isinstance(statement, Insert) else Write.DELETE
    write = Write.UPDATE if isinstance(statement, Update) else write
    # Otherwise SQLAlchemy requires the version in the rows, and raises it.
    by_key = writes_by_key(statement, parameters)
    rows = values_of(statement).rows if write is Write.UPDATE and not by_key else ()
    of_headers = partial(_leaves_version, rows)
    with _checked(
        refusals, targets, write, lambda refusal: refusal.statement(run), of_headers
    ) as checks:
        asked = _number_asked(checks, run)
        yield partial(_after, refusals, statement, write, checks, asked)


def targets_here(run: Execution) -> tuple[Target, ...]:
    """Return the targets of a statement, except tables that only share a document's table name."""
    return targets_of(run.statement, run.parameters, _tables_elsewhere(run))


def _tables_elsewhere(run: Execution) -> Collection[Any]:
    """Return the statement's tables that only share the name of a document's table."""
    session, statement = run.session, run.statement
    others, mapper = tables_named(statement), mapper_named(statement)
    if not others or writes_by_key(statement, run.parameters):
        elsewhere = mapper is not None and is_class_elsewhere(session, mapper)
        return [named_alone(statement)] if elsewhere else ()
    binds = {"clause": statement, **run.how.get("bind_arguments", {})}
    if mapper is not None:
        binds = {"mapper": mapper, **binds}
    options = statement.get_execution_options(), run.how.get("execution_options", {})
    return [other for other in others if is_elsewhere(session, other, binds, *options)]


def _number_asked(checks: Sequence[StatementCheck], run: Execution) -> int | None:
    """Return how many rows the statement would write now; None if they are not counted."""
    statement = run.statement
    if not _can_count(checks, statement, run.given):
        return None
    left, first = sum(candidate.left for candidate in checks), checks[0]
    if checks == [first] and covers(first.target, statement):
        return (first.asked or 0) - left
    return sum(int(count) for _, ((count,),) in run.ask(select_number(statement))) - left


def _after(
    refusals: Refusals,
    statement: Any,
    write: Write,
    checks: Sequence[StatementCheck],
    asked: int | None,
    result: Any,
) -> Any:
    """Check the rows that the statement wrote; return its result, which stays readable.

    :raises UnlockedWrite: it wrote rows that were not checked; the transaction cannot be committed.
    """
    written = None
    if asked is not None:
        result, written = rows_written(statement, result)
    for check in checks:
        check.refuse_others(asked, written, result)
    if write is not Write.INSERT or values_of(statement).conditional:
        return result
    for target in filter(is_header_target, (candidate.target for candidate in checks)):
        result, keys = _keys_of_result(statement, target, result)
        for key in keys:
            refusals.add_inserted(document_key(target.root, key))
    return result


def _keys_of_result(statement: Any, target: Target, result: Any) -> tuple[Any, list[Identity]]:
    """Return the result, which stays readable, and the primary keys of the inserted rows.

    They are in the rows of ``returning(Order.id)`` or ``returning(Order)``, or in
    ``inserted_primary_key``.
    """
    columns = returned_columns(statement)
    if not columns:
        return result, _key_inserted(statement, result)
    if isinstance(result, IteratorResult):  # of objects, or of their attributes
        rows = (
            row if isinstance(row, (tuple, ResultRow)) else (row,) for row in buffer_rows(result)
        )
        found = [each for each in chain.from_iterable(rows) if isinstance(each, target.root.class_)]
        headers = [key for key in (instance_state(each).identity for each in found) if key]
        if headers:
            return result, headers
    return result, _keys_among(columns, target, result)


def _key_inserted(statement: Any, result: Any) -> list[Identity]:
    key: Any = None
    with suppress(InvalidRequestError):  # after several rows, none is known
        key = getattr(result, "inserted_primary_key", None)
    own, named = (
        [column.name for column in table.primary_key]
        for table in (table_of(statement), named_alone(statement))
    )
    return [] if key is None or None in key or own != named else [tuple(key)]


def _keys_among(columns: Iterable[Any], target: Target, result: Any) -> list[Identity]:
    assert target.mapper is not None
    returned = [
        target.attribute_of(column) if hasattr(column, "key") else None for column in columns
    ]
    names = key_attributes(target.mapper)
    if not {*names} <= {*returned}:
        return []
    places = [returned.index(name) for name in names]
    return [tuple(row[place] for place in places) for row in buffer_rows(result)]


@contextmanager
def checked_rows(
    refusals: Refusals, mapper: Mapper[Any], rows: Sequence[Row], write: Write
) -> Iterator[None]:
    """Check rows that the block writes by primary key.

    :raises UnlockedWrite: one of them belongs to a document that is not locked ForUpdate.
    """
    targets: tuple[Target, ...] = ()
    checks = refusals.enabled and not is_class_elsewhere(refusals.session(), mapper)
    if checks and write is Write.INSERT:
        table = mapped_table(mapper.local_table)
        targets = targets_of_new_rows(targets_of_entity(mapper), table, mapper)
    elif checks:
        targets = targets_by_key(mapper)
        targets += tuple(targets_of_new_kinds(targets, rows))
    with _checked(refusals, targets, write, lambda check: check.rows(rows)):
        yield
    if write is Write.INSERT:  # return_defaults=True has set the keys that the database generated
        for target in filter(is_header_target, targets):
            keys = (target.identity(target.by_attribute(row)) for row in rows)
            for key in filter(None, keys):
                refusals.add_inserted(document_key(target.root, key))


@contextmanager
def _checked(
    refusals: Refusals,
    targets: Iterable[Target],
    write: Write,
    check: Callable[[StatementCheck], Iterable[DocumentKey]],
    of_headers: Callable[[Target], bool] = lambda _: False,
) -> Iterator[Sequence[StatementCheck]]:
    """Run the checks, then the block, raise the versions, and record the new documents.

    :param of_headers: whether a write to rows of headers leaves their version unchanged.
    """
    session = refusals.session()
    checks = [StatementCheck(session, refusals, target, write) for target in targets]
    if checks:
        refusals.reset_warnings()
    with session.no_autoflush:
        inserted = [*chain.from_iterable(map(check, checks))]
    yield checks
    for candidate in checks:
        root = candidate.target.root
        if declares(root, "version") and (
            not is_header_target(candidate.target) or of_headers(candidate.target)
        ):
            refusals.raise_versions(root, [key for key in candidate.headers if not has_null(key)])
    for key in inserted:
        refusals.add_inserted(key)
    for document, identity in chain.from_iterable(map(attrgetter("new_keys"), checks)):
        refusals.add_key(document, identity)


def _leaves_version(rows: Sequence[Row], target: Target) -> bool:
    """Return whether an UPDATE of headers with these values leaves their version unchanged."""
    column: Any = target.root.version_id_col
    name = target.root.get_property_by_column(column).key
    given = chain.from_iterable(map(target.by_attribute, rows))
    return bool(rows) and callable(target.root.version_id_generator) and name not in given


def _can_count(checks: Sequence[StatementCheck], statement: Any, given: Sequence[Row]) -> bool:
    """Return whether the driver's row count covers exactly the checked rows."""
    if not checks or any(candidate.asked is None for candidate in checks):
        return False
    if isinstance(statement, Update) and other_tables(statement):
        return False  # for several tables, the driver counts all rows
    # Otherwise one row may be written for two parameter sets.
    return not brings_into_its_where(statement, checks[0].target, given)


U = TypeVar("U", bound=Update)


def atomic_update(statement: U) -> U:
    """Return the UPDATE, which the write guard then accepts without the locks of its headers.

    Use it for a statement that computes the new value from the old one: ``values(stock=Item.stock -
    2)`` with the condition ``where(Item.stock >= 2)``.  The database locks each row while it
    computes the value, so the statement waits for a holder of ForUpdate or SharedRead, and loses no
    update.  The row count shows whether the condition was true.

    Only columns of headers may change, and not their keys.  An UPDATE of parts still needs the lock
    of their header; so does a header whose total must agree with its parts.  The statement adds
    nothing to ``held_locks``.

    If the class has a ``version_id_col``, the UPDATE raises the version of its rows.  A session
    with ``checkouts=`` locks the rows first and raises CheckedOut if another owner has one of them,
    unless the session already holds it by ``checkout=``.

    Example::

        session.execute(atomic_update(update(Order).where(Order.id == 42).values(total=Order.total + 1)))

    :raises TypeError: not an ``update()``.
    :raises ValueError: it sets no value, or a value that is not an SQL expression and so may be
        older than the row.  Or SQL cannot raise the version: the class has its own
        ``version_id_generator``, and ``values()`` does not set the version.
    """
    if not isinstance(statement, Update):
        raise TypeError(f"atomic_update() takes an update(), got {statement!r}")
    rows = values_of(statement).rows
    versions = set(chain.from_iterable(map(_names_of_version, _versioned(statement))))
    plain = [
        name
        for row in rows
        for name, value in row.items()
        if not (isinstance(value, ClauseElement) and not isinstance(value, BindParameter))
        and _key_of(name) not in versions
    ]
    if plain or not rows:
        subject = f"the value of {plain[0]}" if plain else "its new value"
        raise ValueError(
            f"atomic_update(): {subject} is not an SQL expression such as Item.stock - 2, so it may come "
            "from a read without the lock. Take the lock, and change the object"
        )
    return _raising_versions(statement).execution_options(**{ATOMIC: True})


def _versioned(statement: Update) -> list[Mapper[Any]]:
    """Return the classes of the rows that have a version."""
    named = mapper_named(statement)
    if named is None and named_alone(statement) is not table_of(statement):
        return []  # another Table object: only a session knows whether it is the same table
    if named is None:
        headers = filter(is_header_target, targets_of(statement, None))
        found = [*dict.fromkeys(header.mapper for header in headers if header.mapper is not None)]
    else:
        found = [named]
    return [mapper for mapper in found if mapper.version_id_col is not None]


def _key_of(name: Any) -> str:
    return name if isinstance(name, str) else str(name.key)


def _names_of_version(mapper: Mapper[Any]) -> set[str]:
    column: Any = mapper.version_id_col
    return {column.key, mapper.get_property_by_column(column).key}


def _raising_versions(statement: U) -> U:
    for mapper in _versioned(statement):
        names = _names_of_version(mapper)
        given = set(map(_key_of, chain.from_iterable(values_of(statement).rows)))
        if not names.isdisjoint(given) or mapper.version_id_generator is False:
            continue  # the statement or the server raises it
        _refuse_unmade(statement, mapper)
        version = _version_of(statement, mapper)
        try:
            statement = statement.values({version: version + 1})
        except (ArgumentError, InvalidRequestError):
            raise ValueError(
                f"atomic_update() cannot add the version of {mapper.class_.__name__} to ordered_values(). Set it there, or use values()"
            ) from None
    return statement


def _refuse_unmade(statement: Update, mapper: Mapper[Any]) -> None:
    """:raises ValueError: the UPDATE cannot raise the version of these rows."""
    what, column = (
        f"atomic_update(): the version of {mapper.class_.__name__}",
        mapper.version_id_col,
    )
    if column is None or column.table is not table_of(statement):
        raise ValueError(
            f"{what} is in another table than the UPDATE's. Take the lock, and change the object"
        )
    if not counts_up(mapper):
        raise ValueError(
            f"{what} comes from a version_id_generator, which SQL cannot call. Set the version in values() too"
        )


def _version_of(statement: Update, mapper: Mapper[Any]) -> Any:
    column: Any = mapper.version_id_col
    entity = entity_of(statement)
    if entity is None:
        return statement.table.columns[column.key or column.name]
    return getattr(entity, mapper.get_property_by_column(column).key)
