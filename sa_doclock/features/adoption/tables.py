"""The classes whose header rows are the rows of a table."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from sqlalchemy import Table
from sqlalchemy.orm import Mapper

from ...core.documents import declared_roots, mapper_cache, mapper_of, root_of
from ...core.sqlalchemy_internals import all_mappers


@mapper_cache
def roots_of_table(table: Table) -> tuple[Mapper[Any], ...]:
    """Return the roots of the classes that have their header rows in this table.

    Where several classes that do not inherit from each other are mapped on it, these are the
    declared ones, if there is one; else all of them.
    """
    found = [one for one in all_mappers() if one.local_table is table and root_of(one) is one]
    declared = set(declared_roots())
    chosen = [one.class_ for one in found if one in declared] or [one.class_ for one in found]
    return tuple(map(mapper_of, sorted(chosen, key=attrgetter("__module__", "__qualname__"))))
