"""Relations of PostgreSQL whose rows FOR UPDATE does not lock, without an error: some views, foreign tables."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

from ...errors import LockNotSupported
from ..connection import ask_driver

# A view, a foreign table and so on; or a table whose partitions or heirs may be such.
_QUESTION: Final = (
    "SELECT relkind FROM pg_catalog.pg_class "
    "WHERE oid = pg_catalog.to_regclass(CAST(:name AS text)) AND (relkind <> 'r' OR relhassubclass)"
)
# FOR UPDATE of a view goes on to the FROM of its SELECT alone.  It locks no row of a UNION, a CTE, a function,
# VALUES or a subquery among the columns, and of a foreign table what its wrapper makes of it.  An
# updatable view has one table, or one such view, in its FROM:
# https://www.postgresql.org/docs/current/sql-createview.html#SQL-CREATEVIEW-UPDATABLE-VIEWS
# A view with an INSTEAD rule counts as updatable whatever it reads (4 is 1 << CMD_UPDATE).
_UNLOCKED: Final = (
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
    "JOIN pg_catalog.pg_class one USING (oid) WHERE relkind IN ('f', 'm') "
    "OR relkind = 'v' AND (pg_catalog.pg_relation_is_updatable(one.oid, false) & 4 = 0 OR EXISTS "
    "(SELECT 1 FROM pg_catalog.pg_rewrite WHERE ev_class = one.oid AND ev_type <> '1'))"
)

_REASONS: Final = {
    "f": "is a foreign table, whose rows another server or program has: no lock here is a lock there",
    "m": "is a materialized view, whose rows are copies",
}
_VIEW: Final = (
    "is a view that is not simply one table, and FOR UPDATE locks no rows of a UNION, a CTE or a "
    "function below a view; lock the row of the table that the view selects from"
)


def check_rows(connection: Connection, name: str) -> None:
    """Raise LockNotSupported for a relation whose rows, or some, are not locked by FOR UPDATE.

    :param name: as it stands in a statement.
    """
    if not ask_driver(connection, _QUESTION, name=name):
        return
    for kind, relation in ask_driver(connection, _UNLOCKED, name=name):
        raise LockNotSupported(f"{relation!r} {_REASONS.get(kind, _VIEW)}")
