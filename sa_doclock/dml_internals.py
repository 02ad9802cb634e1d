"""The private names of SQLAlchemy that describe statements; sqlalchemy_internals.py has all others.

They show the values that an INSERT, UPDATE or DELETE writes and returns, and the execution that loaded an
object.  tests/unit/test_sqlalchemy_internals*.py fail when one of the names goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, CompoundSelect, Insert, TextClause, literal_column
from sqlalchemy.engine import ChunkedIteratorResult, MergedResult
from sqlalchemy.orm import loading
from sqlalchemy.sql.dml import ValuesBase

from .sqlalchemy_internals import rows_of_values

# SQLAlchemy numbers the executions that load objects, across all sessions.  The public
# InstanceState.runid is the number of the last one that loaded all of an object.  Only since
# SQLAlchemy 2.1 does a Result lead to it.  If the name is gone, -1 matches no object.
_next_run: Callable[[], int] = getattr(loading, "_new_runid", lambda: -1)

_RESULT_HAS_RUN = "context" in signature(ChunkedIteratorResult).parameters

run_before: Callable[[], int] = int if _RESULT_HAS_RUN else _next_run
"""Return a number below the next execution's; 0 if its Result will know it."""

run_of: Callable[[Any], int] = (
    attrgetter("context.runid") if _RESULT_HAS_RUN else lambda _result: _next_run()
)
"""Return the number of the execution that has just returned this Result, or a greater one."""


def merged_results(result: MergedResult[Any]) -> Sequence[Any]:
    """Return the Results that ``Result.merge()`` combined."""
    return getattr(result, "_results", ())


class Values(NamedTuple):
    """The values of an INSERT or UPDATE, before its parameters are known."""

    rows: tuple[Mapping[Any, Any], ...]  # by column, attribute or name; empty: all parameters
    from_select: bool
    overwrites: bool  # ON CONFLICT DO UPDATE, OR REPLACE
    conditional: bool  # these, ON CONFLICT DO NOTHING, IGNORE: the row may have existed


class Conflict(NamedTuple):
    """The update that an INSERT makes of an existing row."""

    columns: frozenset[str] | None  # equal in both rows, by key; None: those of any unique key
    sets: Mapping[str, Any]  # the values of the update, by key of the column


def conflict_of(statement: ValuesBase) -> Conflict | None:
    """Return the arguments of ``on_conflict_do_update()`` or ``on_duplicate_key_update()``.

    None for anything else, and for conflicts that are not given by columns.
    """
    clause: Any = getattr(statement, "_post_values_clause", None)
    kind = type(clause).__name__
    if kind == "OnDuplicateClause":  # MySQL's; a dict, or pairs
        return Conflict(None, _by_key(clause.update))
    if kind != "OnConflictDoUpdate":  # PostgreSQL's and SQLite's
        return None
    constraint = getattr(clause, "constraint_target", None)
    if constraint is not None:
        table: Any = statement.table
        found = [
            unique.columns.keys()
            for unique in (*table.constraints, *table.indexes)
            if unique.name == constraint
        ]
        return Conflict(frozenset(*found), _by_key(clause.update_values_to_set)) if found else None
    return _inferred(clause)


def _inferred(clause: Any) -> Conflict | None:
    sets = _by_key(clause.update_values_to_set)
    elements = clause.inferred_target_elements
    if elements is None:
        return Conflict(None, sets)
    if not all(isinstance(element, (str, Column)) for element in elements):
        return None  # an index on expressions
    return Conflict(frozenset(map(_key_of, elements)), sets)


def _by_key(values: Any) -> Mapping[str, Any]:
    return {_key_of(column): value for column, value in dict(values).items()}


def _key_of(column: Any) -> str:
    key: str = column if isinstance(column, str) else column.key
    return key


def values_of(statement: ValuesBase) -> Values:
    """Return the arguments of ``values()``, ``ordered_values()`` and ``from_select()``."""
    conflict = getattr(statement, "_post_values_clause", None)
    does_nothing = "DoNothing" in type(conflict).__name__
    prefixes = [str(prefix).upper() for prefix, _ in statement._prefixes]
    replaces = any("REPLACE" in prefix for prefix in prefixes)
    return Values(
        tuple(rows_of_values(statement)),
        from_select=getattr(statement, "select", None) is not None,
        overwrites=replaces or (conflict is not None and not does_nothing),
        conditional=conflict is not None or bool(prefixes),
    )


def select_of_insert(statement: Insert) -> tuple[Sequence[str], Any]:
    """Return the names passed to ``from_select()``, and the SELECT, with labels for its literals."""
    return statement._select_names or (), _label_literals(statement.select)


def _label_literals(statement: Any) -> Any:
    # No clause outside a subquery names them.
    if isinstance(statement, CompoundSelect):
        named = statement._generate()
        named.selects = [_label_literals(select) for select in statement.selects]
        return named
    columns = getattr(statement, "_raw_columns", ())
    texts = (literal_column(c.text) if isinstance(c, TextClause) else c for c in columns)
    labelled = [text.label(None) if getattr(text, "is_literal", False) else text for text in texts]
    if all(column is other for column, other in zip(columns, labelled, strict=True)):
        return statement
    return statement.with_only_columns(*labelled)


def returned_columns(statement: ValuesBase) -> tuple[Any, ...]:
    """Return the columns in each row of the result; None stands for an entity."""
    return tuple(chain.from_iterable(map(_columns_of_returned, statement._returning)))


def _columns_of_returned(element: Any) -> Iterable[Any]:
    if "parententity" in element._annotations and not isinstance(element, ColumnElement):
        return (None,)
    return getattr(element, "columns", (getattr(element, "element", element),))
