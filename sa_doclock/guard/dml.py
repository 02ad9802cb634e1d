"""The guard for statements: ORM-enabled and Core UPDATE, DELETE and INSERT in a session.

The documents that an UPDATE or DELETE would write are selected by the statement's own WHERE clause;
those to which an INSERT adds rows are in its values, or in its SELECT.  Afterwards, the written
rows are counted, and the result has the generated keys of new headers.

atomic_update() makes a relative UPDATE of headers, for which the database's own row lock suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import BindParameter, ClauseElement, Update
from sqlalchemy.engine import Row as ResultRow
from sqlalchemy.exc import ArgumentError, InvalidRequestError
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_state

from ..core.documents import document_key
from ..dml_internals import returned_columns
from ..keys import DocumentKey, Identity
from ..sqlalchemy_internals import autoflush, buffer_rows
from ..versions import counts_up
from .refusals import Refusals
from .statement_check import ATOMIC, StatementCheck
from .targets import Target, Way, Write, is_header_target, targets_here, targets_of
from .touched import brings_into_its_where, covers, rows_written, select_number


@contextmanager
def checked_write(
    refusals: Refusals, write: Write, coming: Collection[DocumentKey | None] = ()
) -> Iterator[Callable[[Any], Any]]:
    """Check the write, execute it in the block, raise the versions, and record new documents.

    :param coming: documents that the block inserts, too.

    Yields a function that returns the statement's result after it has recorded the keys of new
    headers in it.

    :raises UnlockedWrite: it would write to a document that is not locked ForUpdate.
    """
    session = refusals.session()
    targets = targets_here(session, write) if refusals.enabled else ()
    checks = [StatementCheck(refusals, target, write, coming) for target in targets]
    if checks:
        # The execution would flush too, but the rows that the check finds depend on it.
        autoflush(session, write.options)
        refusals.reset_warnings()
    with session.no_autoflush:
        for check in checks:
            check.before()
    asked = _number_asked(checks, write)
    yield partial(_after, refusals, write, checks, asked)
    for check in checks:
        check.note_written()


def _number_asked(checks: Sequence[StatementCheck], write: Write) -> int | None:
    """Return how many rows the statement would write now; None if they are not counted."""
    if not _can_count(checks, write):
        return None
    left, first = sum(check.left for check in checks), checks[0]
    if checks == [first] and covers(first.target, write):
        return (first.asked or 0) - left
    return sum(int(count) for _, ((count,),) in first.ask(select_number(write))) - left


def _after(
    refusals: Refusals,
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
        result, written = rows_written(write.statement, result)
    for check in checks:
        check.refuse_others(asked, written, result)
    if write.way is Way.INSERT and not write.values.conditional:
        for target in filter(is_header_target, (check.target for check in checks)):
            result, keys = _keys_of_result(write, target, result)
            for key in keys:
                refusals.add_inserted(document_key(target.root, key))
    return result


def _keys_of_result(write: Write, target: Target, result: Any) -> tuple[Any, list[Identity]]:
    """Return the result, which stays readable, and the primary keys of the inserted rows.

    They are in the rows of ``returning(Order.id)`` or ``returning(Order)``, or in
    ``inserted_primary_key``.
    """
    columns, keys = returned_columns(write.statement), list[Identity]()
    if not columns:
        key: Any = None
        with suppress(InvalidRequestError):  # after several rows, none is known
            key = getattr(result, "inserted_primary_key", None)
        own, named = (
            [column.name for column in table.primary_key] for table in (write.table, write.named)
        )
        return result, [] if key is None or None in key or own != named else [tuple(key)]
    returned = [
        target.attribute_of(column) if hasattr(column, "key") else None for column in columns
    ]
    names = target.key
    has_keys = {*names} <= {*returned}
    if not has_keys and None not in columns:
        return result, []
    for row in buffer_rows(result):
        values = row if isinstance(row, (tuple, ResultRow)) else (row,)
        headers = [value for value in values if isinstance(value, target.root.class_)]
        keys += filter(None, (instance_state(header).identity for header in headers))
        if has_keys and not headers:
            keys.append(tuple(values[returned.index(name)] for name in names))
    return result, keys


def _can_count(checks: Sequence[StatementCheck], write: Write) -> bool:
    """Return whether the driver's row count covers exactly the checked rows."""
    if not checks or any(check.asked is None for check in checks):
        return False
    if write.way is Way.UPDATE and write.other_tables:
        return False  # for several tables, the driver counts all rows
    # Otherwise one row may be written for two parameter sets.
    return not brings_into_its_where(write, checks[0].target)


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
    write = Write(statement)
    rows, versioned = write.values.rows, _versioned(write)
    versions = set(chain.from_iterable(map(_names_of_version, versioned)))
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
    for mapper in versioned:
        statement = _raising_version(statement, mapper)
    return statement.execution_options(**{ATOMIC: True})


def _versioned(write: Write) -> list[Mapper[Any]]:
    """Return the classes of the rows that have a version."""
    found = [write.mapper]
    if write.mapper is None:
        # Another Table object: only a session knows whether it is the same table.
        known = write.named is write.table
        headers = filter(is_header_target, targets_of(write) if known else ())
        found = [*dict.fromkeys(header.mapper for header in headers)]
    return [mapper for mapper in found if mapper is not None and mapper.version_id_col is not None]


def _key_of(name: Any) -> str:
    return name if isinstance(name, str) else str(name.key)


def _names_of_version(mapper: Mapper[Any]) -> set[str]:
    column: Any = mapper.version_id_col
    return {column.key, mapper.get_property_by_column(column).key}


def _raising_version(statement: U, mapper: Mapper[Any]) -> U:
    """Return the UPDATE with an increment of its rows' version."""
    write, name = Write(statement), mapper.class_.__name__
    given = map(_key_of, chain.from_iterable(write.values.rows))
    if mapper.version_id_generator is False or not _names_of_version(mapper).isdisjoint(given):
        return statement  # the server or the statement raises it
    column: Any = mapper.version_id_col
    if column.table is not write.table:
        raise ValueError(
            f"atomic_update(): the version of {name} is in another table than the UPDATE's. Take the lock, "
            "and change the object"
        )
    if not counts_up(mapper):
        raise ValueError(
            f"atomic_update(): the version of {name} comes from a version_id_generator, which SQL cannot call. "
            "Set the version in values() too"
        )
    if write.entity is None:
        version = statement.table.columns[column.key or column.name]
    else:
        version = getattr(write.entity, mapper.get_property_by_column(column).key)
    try:
        return statement.values({version: version + 1})
    except (ArgumentError, InvalidRequestError):
        raise ValueError(
            f"atomic_update() cannot add the version of {name} to ordered_values(). Set it there, or use values()"
        ) from None
