"""The guard for statements: ORM-enabled and Core UPDATE, DELETE and INSERT in a session.

The documents that an UPDATE or DELETE would write to are read from the database with the
statement's own WHERE clause; those that an INSERT adds rows to are in its values, or in its
SELECT.  After it the rows that were written are counted, and its result tells the keys that the
database has given to new headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import Insert, Update
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine import Row as ResultRow
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_state

from ..core.documents import UNKNOWN, declares, document_key, has_null, key_attributes
from ..core.same_tables import is_class_elsewhere, is_elsewhere, mapped_table, root_of_table
from ..keys import DocumentKey, Identity
from ..sqlalchemy_internals import autoflush, buffer_rows
from .dml_internals import returned_columns, values_of
from .refusals import Refusal, Refusals
from .statement_check import StatementCheck
from .targets import (
    Execution,
    Row,
    Target,
    Write,
    is_header_target,
    mapper_named,
    other_tables,
    targets_by_key,
    targets_of,
    targets_of_entity,
    targets_of_new_kinds,
    targets_of_new_rows,
    writes_by_key,
)
from .touched import (
    CannotTranslate,
    Translated,
    brings_into_its_where,
    covers,
    rows_written,
    select_number,
    tables_named,
    translate,
)


@contextmanager
def checked_statement(
    refusals: Refusals, statement: Any, parameters: Any, how: Mapping[str, Any]
) -> Iterator[Callable[[Any], Any]]:
    """Check the statement, which is executed in the block.

    Yields a function for its result, which it returns after it has noted the keys of new
    headers that the result tells.

    :param how: the execution options and bind arguments that it is executed with.
    :raises UnlockedWrite: it would write to a document that is not held ForUpdate.
    """
    named = _as_mapped(refusals, statement, parameters, how) if refusals.enabled else None
    targets = () if named is None else targets_of(named.statement, named.parameters)
    if named is not None and targets:
        # The execution would flush too, but the rows that the check finds depend on it.
        options = {**statement.get_execution_options(), **how.get("execution_options", {})}
        autoflush(refusals.session(), options)
    write = _write_of(statement)
    named = named or Translated(statement, parameters)
    run = Execution(refusals.session(), named.statement, named.parameters, how)
    # Else SQLAlchemy wants the version in the rows, and raises it.
    by_key = writes_by_key(statement, parameters)
    rows = values_of(statement).rows if write is Write.UPDATE and not by_key else ()
    of_headers = partial(_leaves_version, rows)
    with _checked(refusals, targets, write, lambda one: one.statement(run), of_headers) as checks:
        asked = _number_asked(checks, run)
        yield partial(_after, refusals, named, write, checks, asked)


def _as_mapped(
    refusals: Refusals, statement: Any, parameters: Any, how: Mapping[str, Any]
) -> Translated | None:
    """Return the statement with the mapped Tables of documents in place of other objects for them.

    None if the class that it names is none of a document.
    """
    same = Translated(statement, parameters)
    others = tables_named(statement)
    mapper = mapper_named(statement) if others else None
    if not others or writes_by_key(statement, parameters):
        elsewhere = mapper is not None and is_class_elsewhere(refusals.session(), mapper)
        return None if elsewhere else same
    binds = {"clause": statement, **how.get("bind_arguments", {})}
    if mapper is not None:
        binds = {"mapper": mapper, **binds}
    options = statement.get_execution_options(), how.get("execution_options", {})
    session = refusals.session()
    here = [one for one in others if not is_elsewhere(session, one, binds, *options)]
    if not here:
        return same if mapper is None else None
    try:
        return translate(statement, parameters, here, mapper)
    except CannotTranslate:
        what = f"a statement on another object for the table {here[0].name} would write rows"
        refusals.reset_warnings()
        if refusals.active:
            refusals.refuse(Refusal(root_of_table(here[0]), UNKNOWN, what, what))
        return None


def _number_asked(checks: Sequence[StatementCheck], run: Execution) -> int | None:
    """Return how many rows the statement would write now; None if they are not counted."""
    statement = run.statement
    if not _can_count(checks, statement, run.given):
        return None
    left, first = sum(one.left for one in checks), checks[0]
    if checks == [first] and covers(first.target, statement):
        return (first.asked or 0) - left
    return sum(int(count) for _, ((count,),) in run.ask(select_number(statement))) - left


def _after(
    refusals: Refusals,
    named: Translated,
    write: Write,
    checks: Sequence[StatementCheck],
    asked: int | None,
    result: Any,
) -> Any:
    """Check what the statement has written; return its result, which can still be read.

    :raises UnlockedWrite: rows that were not asked about; nothing of the transaction can be
        committed.
    """
    written, statement = None, named.statement
    if asked is not None:
        result, written = rows_written(statement, result)
    for check in checks:
        if check.has_written_others(asked, written, result) or check.has_overwritten_others():
            refusals.refuse_written(check.refusal_of_others())
    tells_keys = named.same_key and write is Write.INSERT
    if tells_keys and not values_of(statement).conditional:
        return _note_returned(refusals, statement, [one.target for one in checks], result)
    return result


def _note_returned(
    refusals: Refusals, statement: Any, targets: Iterable[Target], result: Any
) -> Any:
    for target in filter(is_header_target, targets):
        result, keys = _keys_of_result(statement, target, result)
        for key in keys:
            refusals.add_inserted(document_key(target.root, key))
    return result


def _keys_of_result(statement: Any, target: Target, result: Any) -> tuple[Any, list[Identity]]:
    """Return the result, which can still be read, and the primary keys of the inserted rows.

    They are in the rows of ``returning(Order.id)`` and of ``returning(Order)``, or in
    ``inserted_primary_key``.
    """
    columns = returned_columns(statement)
    if not columns:
        return result, list(_inserted_primary_key(result))
    if isinstance(result, IteratorResult):  # of objects, or of their attributes
        objects = list(_headers_among(buffer_rows(result), target))
        if objects:
            return result, objects
    return _keys_of_columns(columns, target, result)


def _keys_of_columns(
    columns: Sequence[Any], target: Target, result: Any
) -> tuple[Any, list[Identity]]:
    assert target.mapper is not None
    returned = [target.attribute_of(one) if hasattr(one, "key") else None for one in columns]
    names = key_attributes(target.mapper)
    if not {*names} <= {*returned}:
        return result, []
    places = [returned.index(name) for name in names]
    return result, [tuple(row[place] for place in places) for row in buffer_rows(result)]


def _headers_among(rows: Iterable[Any], target: Target) -> Iterator[Identity]:
    """Yield the primary keys of the headers among the objects of these rows."""
    for row in rows:
        for one in row if isinstance(row, (tuple, ResultRow)) else (row,):
            key = instance_state(one).identity if isinstance(one, target.root.class_) else None
            if key is not None:
                yield key


def _inserted_primary_key(result: Any) -> Iterator[Identity]:
    key = None
    with suppress(InvalidRequestError):  # of several rows, none is known
        key = getattr(result, "inserted_primary_key", None)
    if key is not None and None not in key:
        yield tuple(key)


@contextmanager
def checked_rows(
    refusals: Refusals, mapper: Mapper[Any], rows: Sequence[Row], write: Write
) -> Iterator[None]:
    """Check rows that are written by primary key in the block.

    :raises UnlockedWrite: one of them is of a document that is not held ForUpdate.
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
    if write is Write.INSERT:  # return_defaults=True has set the keys that the database gave
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

    :param of_headers: whether a write to rows of headers leaves their version as it is.
    """
    session = refusals.session()
    inserted: list[DocumentKey] = []
    checks = [StatementCheck(session, refusals, target, write) for target in targets]
    if checks:
        refusals.reset_warnings()
    with session.no_autoflush:
        for one in checks:
            inserted += check(one)
    yield checks
    for one in checks:
        _raise_versions(refusals, one, of_headers)
    for key in inserted:
        refusals.add_inserted(key)
    for document, identity in chain.from_iterable(one.new_keys for one in checks):
        refusals.add_key(document, identity)


def _raise_versions(
    refusals: Refusals, check: StatementCheck, of_headers: Callable[[Target], bool]
) -> None:
    """Raise the versions of the documents that the statement has written to."""
    target = check.target
    if declares(target.root, "version") and (not is_header_target(target) or of_headers(target)):
        keys = [key for key in check.headers if not has_null(key)]
        refusals.raise_versions(target.root, keys)


def _leaves_version(rows: Sequence[Row], target: Target) -> bool:
    """Return whether an UPDATE of headers by these values leaves their version as it is."""
    column: Any = target.root.version_id_col
    name = target.root.get_property_by_column(column).key
    given = chain.from_iterable(map(target.by_attribute, rows))
    return bool(rows) and callable(target.root.version_id_generator) and name not in given


def _write_of(statement: Any) -> Write:
    if isinstance(statement, Insert):
        return Write.INSERT
    return Write.UPDATE if isinstance(statement, Update) else Write.DELETE


def _can_count(checks: Sequence[StatementCheck], statement: Any, given: Sequence[Row]) -> bool:
    """Return whether the driver's number of rows is that of the rows that were asked about."""
    if not checks or any(one.asked is None for one in checks):
        return False
    if isinstance(statement, Update) and other_tables(statement):
        return False  # of several tables the driver gives the number of all rows
    # else a row may be written for two of the parameters
    return not brings_into_its_where(statement, checks[0].target, given)
