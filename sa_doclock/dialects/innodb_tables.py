"""Tables and views of MySQL and MariaDB whose rows FOR UPDATE does not lock: engines other than InnoDB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import Connection

from ..errors import LockNotSupported
from .connection import ask_driver

# Excludes tables that no other connection can change: MariaDB lists a connection's temporary tables, and
# says that those of information_schema are stored by MEMORY or Aria.
_STORAGE_ENGINE = (
    "SELECT engine FROM information_schema.tables "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name "
    "AND table_type NOT IN ('SYSTEM VIEW', 'TEMPORARY')"
)
_VIEW = (
    "SELECT is_updatable, view_definition FROM information_schema.views "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
# Both products store the definition in one format, with each table as `schema`.`table`.  It is
# empty for an account without SHOW VIEW.
_PART_OF_VIEW = re.compile(
    r"'(?:[^'\\]|\\.)*'"  # a literal may contain anything, and so may a name
    r"|(?:from|join) (?P<open>\(*)`(?P<schema>(?:[^`]|``)+)`\.`(?P<name>(?:[^`]|``)+)`"
    r"|`(?:[^`]|``)*`"
    r"|(?P<subquery>\(select )|(?P<other>\()|(?P<close>\))",
    re.DOTALL,
)


class StorageEngine(NamedTuple):
    """The name of a storage engine; None for a view."""

    name: str | None


def engine_in_schema(
    connection: Connection, schema: str | None, table: str
) -> StorageEngine | None:
    """Return the storage engine of a table from information_schema, which omits temporary tables."""
    found = ask_driver(connection, _STORAGE_ENGINE, schema=schema, name=table)
    return StorageEngine(found[0][0]) if found else None


def check_engine(name: str, engine: str | None) -> None:
    """Raise LockNotSupported if InnoDB does not store this table or view.

    MyISAM, Aria and MEMORY accept FOR UPDATE, and silently lock nothing.
    """
    if str(engine).upper() == "INNODB":
        return
    if engine is None:
        raise LockNotSupported(
            f"{name!r} is a view, and FOR UPDATE locks nothing if the server first copies the rows of a "
            "view (ALGORITHM=TEMPTABLE, GROUP BY, UNION). Lock the row of the table below the view"
        )
    raise LockNotSupported(
        f"table {name!r} is stored by {engine}, which has no row locks. "
        f"Run ALTER TABLE {name} ENGINE=InnoDB"
    )


def _read_by_view(definition: str) -> Iterator[tuple[str, str]]:
    """Yield schema and name of the tables in the FROM clause of a view.

    Those of a subquery are excluded: FOR UPDATE of the view does not lock them.
    """
    within: list[bool] = []  # for each open parenthesis, whether it encloses a subquery
    for part in _PART_OF_VIEW.finditer(definition):
        if part["name"] is not None:
            within += [False] * len(part["open"])
            if not any(within):
                schema, name = (part[group].replace("``", "`") for group in ("schema", "name"))
                yield schema, name
        elif part["subquery"] or part["other"]:
            within.append(part["subquery"] is not None)
        elif part["close"] and within:
            within.pop()


def check_view(connection: Connection, schema: str | None, name: str) -> None:
    """Raise LockNotSupported if FOR UPDATE locks no rows, or not all, through this view.

    "Views that use TEMPTABLE are not updatable"; views that are not updatable for another reason
    may be merged: https://dev.mysql.com/doc/refman/8.4/en/view-updatability.html.  MariaDB calls a
    view updatable even if it reads another view that is not.
    """
    for updatable, definition in ask_driver(connection, _VIEW, schema=schema, name=name):
        tables = [*_read_by_view(definition or "")]
        # MariaDB calls a view updatable even if all its rows come from a subquery or CTE.
        if updatable != "YES" or (definition and not tables):
            check_engine(name, None)
        for below_schema, below in tables:
            found = engine_in_schema(connection, below_schema, below)
            if found is not None and found.name is None:
                check_view(connection, below_schema, below)
            elif found is not None:
                check_engine(below, found.name)
