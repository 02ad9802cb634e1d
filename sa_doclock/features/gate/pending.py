"""The changes of a function so far: pending ones, and executed statements.

In doubt, a change is assumed, which costs a transaction and loses no data.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

from sqlalchemy import CompoundSelect, Select, TextClause, inspect
from sqlalchemy.orm import FromStatement, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.sql.functions import FunctionElement, GenericFunction
from sqlalchemy.sql.visitors import iterate

from ...core.documents import mapper_cache
from ...keys import IMMUTABLE
from ...sqlalchemy_internals import all_mappers


def pending_changes(session: Session) -> list[object]:
    """Return the pending changes of the session, for a later comparison.

    The list has the objects, not their id(), which another object may get later.
    """
    found: list[object] = [*session.deleted]
    if found:
        found.append(Session.delete)  # anything after it is not deleted
    for instance in (*session.new, *session.dirty):
        found.append(instance)
        state = instance_state(instance)
        relationships = state.manager.mapper.relationships
        for name in state.committed_state:
            value = state.dict.get(name)
            found.append(name)
            if name not in relationships:  # a mutable value may change in place
                found.append(value if type(value) in IMMUTABLE else object())
            elif value is not None and relationships[name].uselist:
                found += collection_adapter(value)
            else:
                found.append(value)
    return found


def is_same(before: Sequence[object], after: Sequence[object]) -> bool:
    """Return whether nothing changed between the two."""
    return len(before) == len(after) and all(map(operator.is_, before, after))


def has_row_twice(session: Session) -> bool:
    """Return whether the session may have a row as objects of two unrelated classes."""
    several = _classes_of_one_table()
    objects = (*session.identity_map.values(), *session.new) if several else ()
    return len(several & {inspect(instance).mapper.base_mapper.class_ for instance in objects}) > 1


@mapper_cache
def _classes_of_one_table() -> frozenset[type[Any]]:
    """Return the classes whose table several hierarchies map."""
    found = defaultdict[Any, set[type[Any]]](set)
    for mapper in all_mappers():
        for table in mapper.tables:
            found[table].add(mapper.base_mapper.class_)
    return frozenset(chain.from_iterable(classes for classes in found.values() if len(classes) > 1))


def may_write(compiled: Any) -> bool:
    """Return whether a statement may have changed something.

    :param compiled: None: a text that SQLAlchemy has not parsed.
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
    """Return whether the clause is a write within a SELECT, or calls an unknown function."""
    if getattr(clause, "is_literal", False) or isinstance(clause, TextClause):
        return "(" in str(clause)
    unknown = isinstance(clause, FunctionElement) and not isinstance(clause, GenericFunction)
    return unknown or getattr(clause, "is_dml", False)
