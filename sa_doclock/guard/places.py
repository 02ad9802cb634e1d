"""Writes that go to another database or schema than the documents that the transaction holds.

The statement itself tells where it goes, with its execution options and its connection, however it came
about: by a flush, a bulk method, or an execute().
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Delete, Insert, Update
from sqlalchemy.engine import Compiled
from sqlalchemy.orm import Mapper

from ..core.documents import clear_with_mappers, declared_roots, parts_of, tables_within
from ..core.ledger import place_of
from ..core.transaction import LockContext, StatementCheck, check_statements
from .refusals import Refusal
from .write_guard import WriteGuard

TableName = tuple[str | None, str]

# Threads: two threads may make it at once, and make the same.
_roots: dict[TableName, Sequence[Mapper[Any]]] = {}
clear_with_mappers(_roots.clear)


def _roots_of_tables() -> Mapping[TableName, Sequence[Mapper[Any]]]:
    """Return the roots of documents that have rows in a table, by its schema and name."""
    if not _roots:
        found: dict[TableName, dict[Mapper[Any], None]] = defaultdict(dict)
        for root in declared_roots():
            parts = parts_of(root)
            mappers = (root, *(part.detail for part in parts))
            own = [one.local_table for mapper in mappers for one in mapper.self_and_descendants]
            links = [part.relationship.secondary for part in parts]
            for table in tables_within([*own, *(one for one in links if one is not None)]):
                found[table.schema, table.name][root] = None
        _roots.update({name: tuple(roots) for name, roots in found.items()})
    return _roots


def _tables_written(compiled: Compiled) -> Iterator[Any]:
    ctes = getattr(compiled, "ctes", None) or ()
    for statement in (compiled.statement, *(one.element for one in ctes)):
        if isinstance(statement, Insert | Update | Delete):
            yield statement.table


def _name_of(table: Any) -> TableName:
    return getattr(table, "schema", None), getattr(table, "name", "")


def _check_of(compiled: Compiled) -> StatementCheck | None:
    """Return the check of a statement that writes rows of documents; None for any other."""
    written = [*_tables_written(compiled)]
    known = _roots_of_tables() if written else {}
    tables = [(table, root) for table in written for root in known.get(_name_of(table), ())]
    return StatementCheck(partial(_check, tables), in_calls=False) if tables else None


def _check(tables: Sequence[tuple[Any, Mapper[Any]]], state: LockContext, context: Any) -> None:
    guard = state.parts.guard
    if not isinstance(guard, WriteGuard) or guard.unguarded:
        return
    place = place_of(context.root_connection, context.execution_options)
    for table, root in tables:
        held = state.ledger.place_of(root.class_)
        if held is None:
            state.ledger.check_place(root.class_, place)
        elif not held.is_same(place):
            # The two databases of a program may have tables of one name that are no more alike.
            own: Any = root.local_table
            if table.metadata is not own.metadata and held.engine is not place.engine:
                continue
            text = (
                f"rows of {table.name} in {place} would be written, while those held are in {held},"
            )
            guard.refuse(Refusal(root, (), text, text))


check_statements(_check_of)
