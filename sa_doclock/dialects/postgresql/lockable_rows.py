"""Relations of PostgreSQL whose rows FOR UPDATE silently does not lock: some views, foreign tables."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ...errors import LockNotSupported
from ...sqlalchemy_internals import raise_as_statement
from ..connection import ask_driver

# Whether it is a view, a foreign table and so on, or a table whose partitions or heirs may be.
_QUESTION: Final = (
    "SELECT CAST(relkind AS text), relkind <> 'r' OR relhassubclass FROM pg_catalog.pg_class "
    "WHERE oid = pg_catalog.to_regclass(CAST(:name AS text))"
)
# Its partitions, the relations that a view reads, and those of them whose rows are not locked.  The
# plan may show tables of a CTE or an inlined function as if they were locked; with a UNION, it may
# lock another table.  Reads the parsed view (ev_action), not pg_get_viewdef(), which waits for the
# view's tables and writes "timestamp with time zone".
_BELOW: Final = (
    "WITH RECURSIVE read (oid) AS ("
    "SELECT CAST(pg_catalog.to_regclass(CAST(:name AS text)) AS oid) "
    "UNION SELECT below.oid FROM read, LATERAL ("
    "SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = read.oid "
    "UNION ALL SELECT refobjid FROM pg_catalog.pg_depend "
    "JOIN pg_catalog.pg_rewrite rule ON objid = rule.oid "
    "WHERE classid = CAST('pg_catalog.pg_rewrite' AS pg_catalog.regclass) "
    "AND refclassid = CAST('pg_catalog.pg_class' AS pg_catalog.regclass) "
    "AND ev_class = read.oid AND ev_type = '1') below (oid)) "
    "SELECT CAST(relkind AS text), CAST(relname AS text) FROM read "
    "JOIN pg_catalog.pg_class one USING (oid) WHERE relkind IN ('f', 'm') OR relkind = 'v' AND ("
    "EXISTS (SELECT 1 FROM pg_catalog.pg_rewrite "
    r"WHERE ev_class = one.oid AND ev_type = '1' AND CAST(ev_action AS text) ~ 'cteList \(|setOperations \{') "
    "OR EXISTS (SELECT 1 FROM pg_catalog.pg_depend "
    "JOIN pg_catalog.pg_rewrite rule ON objid = rule.oid "
    "JOIN pg_catalog.pg_proc function ON refobjid = function.oid "
    "WHERE classid = CAST('pg_catalog.pg_rewrite' AS pg_catalog.regclass) "
    "AND refclassid = CAST('pg_catalog.pg_proc' AS pg_catalog.regclass) "
    "AND ev_class = one.oid AND proretset))"
)
# FOR UPDATE of a view locks the tables in its FROM.  The plan fetches the location (ctid) of each
# row that it locks.
# https://www.postgresql.org/docs/current/sql-select.html#SQL-FOR-UPDATE-SHARE
_PLAN: Final = "EXPLAIN (VERBOSE, COSTS OFF) SELECT * FROM {} FOR UPDATE"

_REASONS: Final = {
    "f": "is a foreign table: PostgreSQL cannot lock the rows of another server or program",
    "m": "is a materialized view: a lock of its rows does not lock the rows of its tables",
    "v": (
        "is a view of which FOR UPDATE may lock no row: it goes on to tables in the view's FROM, and to no UNION, "
        "CTE or function; lock the row of the table that the view selects from"
    ),
}


def check_rows(connection: Connection, name: str) -> bool | None:
    """Raise LockNotSupported if FOR UPDATE does not lock the rows of this relation, or not all.

    :param name: as in a statement.
    :returns: None: the relation does not exist.
    :raises DBAPIError: as the lock would raise it.  It has ended the transaction, and is raised
        once.
    """
    try:
        for kind, may_be_unlocked in ask_driver(connection, _QUESTION, name=name):
            if may_be_unlocked:
                _check_below(connection, name, kind)
            return True
    except DBAPIError as error:
        raise_as_statement(connection, error)
    return None


def _check_below(connection: Connection, name: str, kind: str) -> None:
    for below, relation in ask_driver(connection, _BELOW, name=name):
        raise LockNotSupported(f"{relation!r} {_REASONS[below]}")
    if kind == "v":
        # By SQLAlchemy: it waits for DDL as the lock does, within the limit in the lock's text.
        plan = connection.exec_driver_sql(_PLAN.format(name)).scalars()
        if not any("ctid" in line for line in plan):
            raise LockNotSupported(f"{name!r} {_REASONS[kind]}")
