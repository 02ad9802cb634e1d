"""The kinds of writes, and the attributes that the table itself sets by one."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

from sqlalchemy.orm import Mapper


class Write(enum.Enum):
    """The kinds of writes, in the words of the error."""

    INSERT = "inserted"
    UPDATE = "changed"
    DELETE = "deleted"


class Generated(NamedTuple):
    """The attributes that the table sets where the program does not, by the kind of a write."""

    inserted: frozenset[str] = frozenset()
    updated: frozenset[str] = frozenset()

    def by(self, write: Write) -> frozenset[str]:
        """Return those that a write of this kind sets."""
        return {Write.INSERT: self.inserted, Write.UPDATE: self.updated}.get(write, frozenset())


def generated_attributes(mapper: Mapper[Any], names: Iterable[str]) -> Generated:
    """Return those of these attributes that the table sets where the program does not."""
    wanted = {*names}
    named = [
        (one.key, column)
        for one in mapper.column_attrs
        if one.key in wanted
        for column in one.columns
    ]

    def having(*defaults: str) -> frozenset[str]:
        found = product(named, defaults)
        return frozenset(
            name for (name, column), default in found if getattr(column, default, None) is not None
        )

    return Generated(having("default", "server_default"), having("onupdate", "server_onupdate"))
