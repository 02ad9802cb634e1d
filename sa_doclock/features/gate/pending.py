"""The changes of a function so far: those that are pending, and the statements that it sent.

Whoever cannot be sure says that something was changed, which costs a transaction and no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, Final
from uuid import UUID

from sqlalchemy import CompoundSelect, Select, TextClause, inspect
from sqlalchemy.orm import FromStatement, Session
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.sql.functions import FunctionElement, GenericFunction
from sqlalchemy.sql.visitors import iterate

from ...core.documents import mapper_cache
from ...sqlalchemy_internals import all_mappers

_IMMUTABLE: Final = frozenset(
    (*(type(None), bool, int, float, str, bytes), *(Decimal, UUID, date, time, datetime, timedelta))
)


class Pending:
    """The pending changes of a session at one moment, to be compared with those of another.

    :param session: None: nothing is pending.
    """

    def __init__(self, session: Session | None = None) -> None:
        # Objects, and not their id(), which another may have later.
        self._found = [] if session is None else [*_changes(session)]

    def __bool__(self) -> bool:
        return bool(self._found)

    def is_same(self, other: Pending) -> bool:
        """Return whether nothing was changed between the two."""
        return len(self._found) == len(other._found) and all(
            one is another for one, another in zip(self._found, other._found, strict=True)
        )


def _changes(session: Session) -> Iterator[object]:
    for instance in session.deleted:
        yield instance
        yield Session.delete
    for instance in (*session.new, *session.dirty):
        yield instance
        yield from _changes_of(inspect(instance))


def _changes_of(state: Any) -> Iterator[object]:
    relationships = state.mapper.relationships
    for name in state.committed_state:
        yield name
        value = state.dict.get(name)
        if name not in relationships:
            yield value if type(value) in _IMMUTABLE else object()  # it may change in its place
        elif value is not None and relationships[name].uselist:
            yield from collection_adapter(value)
        else:
            yield value


def has_row_twice(session: Session) -> bool:
    """Return whether the session may have a row as objects of two classes, which do not follow each other."""
    several = _classes_of_one_table()
    known = {key[0] for key in session.identity_map.keys()} if several else set()  # noqa: SIM118  # no Mapping
    known.update(inspect(one).mapper.base_mapper.class_ for one in session.new if several)
    return len(known & several) > 1


@mapper_cache
def _classes_of_one_table() -> frozenset[type[Any]]:
    """Return the classes of those tables that several hierarchies map."""
    found: dict[Any, set[type[Any]]] = {}
    for mapper in all_mappers():
        for table in mapper.tables:
            found.setdefault(table, set()).add(mapper.base_mapper.class_)
    return frozenset(chain.from_iterable(one for one in found.values() if len(one) > 1))


def may_write(compiled: Any) -> bool:
    """Return whether a statement may have changed something.

    :param compiled: None: it is a text that SQLAlchemy has not read.
    """
    if compiled is None:
        return True
    statement = compiled.statement
    if isinstance(statement, FromStatement):
        statement = statement.element
    return not isinstance(statement, (Select, CompoundSelect)) or any(
        map(_may_write, iterate(statement))
    )


def _may_write(clause: Any) -> bool:
    """Return whether it is a write within a SELECT, or calls a function of an unknown name."""
    if getattr(clause, "is_literal", False) or isinstance(clause, TextClause):
        return "(" in str(clause)
    unknown = isinstance(clause, FunctionElement) and not isinstance(clause, GenericFunction)
    return unknown or getattr(clause, "is_dml", False)
