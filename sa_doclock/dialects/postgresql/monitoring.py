"""Who holds a row of PostgreSQL, and who waits: asked of the row, and of pg_locks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Table,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql import Executable

from ...lock_info import PREPARED, LockConnection, Wait
from ..base import schema_of, seconds_of

_GROUPS = 50  # an error for each that is none, so not of any number of rows

# Who holds a row is written into the row: xmax is a transaction, or a group of them.  A
# transaction, and each of its open savepoints, has a lock on its own number.
_MARK: Any = literal_column("CAST(xmax AS text), tableoid")
_OID = text("SELECT CAST(to_regclass(:name) AS oid)")
# Whoever wants such a lock on the table keeps others out of it before he has it.
_TABLE_LOCKS = text("""
    SELECT DISTINCT COALESCE(pid, 0) FROM pg_locks
    WHERE locktype = 'relation' AND relation = :oid
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND mode IN ('ExclusiveLock', 'AccessExclusiveLock')""")
_WRITERS = text("""
    SELECT DISTINCT COALESCE(t.pid, 0) FROM pg_locks t JOIN pg_locks x
    ON x.virtualtransaction = t.virtualtransaction
    WHERE t.locktype = 'relation' AND t.relation IN :oids AND t.granted
    AND t.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock')
    AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
    """).bindparams(bindparam("oids", expanding=True))
_OWNERS = text("""
    SELECT DISTINCT COALESCE(x.pid, 0) FROM pg_locks x JOIN pg_locks t
    ON x.virtualtransaction = t.virtualtransaction
    WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
    AND CAST(x.transactionid AS text) IN :xids
    AND t.locktype = 'relation' AND t.relation IN :oids
    """).bindparams(bindparam("xids", expanding=True), bindparam("oids", expanding=True))
_MEMBERS = text("""
    SELECT CAST(xid AS text), mode FROM pg_get_multixact_members(CAST(:group AS xid))""")
# Of the 64 bits of a transaction's number a row has 32; it is the one nearest to the newest.
_STATUS = text("""
    SELECT txid_status(CASE WHEN number > 0 THEN number END) FROM (
    SELECT newest + ((CAST(:xid AS bigint) - newest + 2147483648) & 4294967295) - 2147483648
    AS number FROM (SELECT txid_snapshot_xmax(txid_current_snapshot()) AS newest) AS s) AS n""")
_PARTIES = text("""
    SELECT pid, usename, application_name, state,
    CAST(extract(epoch FROM statement_timestamp() - xact_start) AS float8), query
    FROM pg_stat_activity WHERE pid IN :pids""").bindparams(bindparam("pids", expanding=True))
# Who waits for a row has locked the place of it, the tuple, to be the next.
_WAITS = """
    WITH w AS (SELECT DISTINCT ON (pid) * FROM pg_locks WHERE NOT granted ORDER BY pid),
    r AS (SELECT DISTINCT ON (pid) * FROM pg_locks WHERE locktype = 'tuple' ORDER BY pid)
    SELECT DISTINCT w.pid AS waiter, blocker, COALESCE(r.relation, w.relation) AS oid,
    CASE WHEN d.oid IS NOT NULL
    THEN CAST(CAST(COALESCE(r.relation, w.relation) AS regclass) AS text) END AS table_name,
    CASE WHEN d.oid IS NOT NULL THEN r.page END AS page, r.tuple AS place,
    CASE WHEN w.locktype = 'advisory' THEN CASE w.objsubid
    WHEN 1 THEN CAST((CAST(w.classid AS bigint) << 32) | CAST(w.objid AS bigint) AS text)
    ELSE concat_ws(', ', w.classid, w.objid) END END AS named,
    CAST(extract(epoch FROM statement_timestamp() - {since}) AS float8) AS seconds
    FROM w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS blocker
    LEFT JOIN r ON r.pid = w.pid LEFT JOIN pg_stat_activity a ON a.pid = w.pid
    LEFT JOIN pg_database d ON d.oid = COALESCE(r.database, w.database)
    AND d.datname = current_database()"""
_KEY_COLUMNS = text("""
    SELECT quote_ident(attname) FROM pg_index JOIN pg_attribute
    ON attrelid = indrelid AND attnum = ANY (indkey)
    WHERE indrelid = :oid AND indisprimary
    ORDER BY array_position(CAST(indkey AS smallint[]), attnum)""")
# Not SET, which a pooler between us and the server would hand on to somebody else.
_HURRY = select(
    func.set_config("lock_timeout", "100ms", literal(True)),
    func.set_config("statement_timeout", "1s", literal(True)),
)


def holders(
    connection: Connection, header: Table, keys: Sequence[tuple[Any, ...]], *, shared: bool
) -> Mapping[int, bool]:
    """The owners of the locks on these rows, or who may have them, and whether it is certain."""
    schema, quote = schema_of(connection, header), connection.dialect.identifier_preparer.quote
    name = ".".join(quote(part) for part in (schema, header.name) if part)
    ((oid,),) = _asked(connection, _OID, name=name)
    if oid is None:
        return {}
    if found := _asked(connection, _TABLE_LOCKS, oid=oid):  # its rows could not be read
        return {pid: True for (pid,) in found}
    if not keys:
        return {pid: False for (pid,) in _asked(connection, _WRITERS, oids=[oid])}
    marks = select(_MARK).select_from(header).where(tuple_(*header.primary_key).in_(keys))
    rows = [row for row in _asked(connection, marks) if row[0] != "0"]
    return _marked(connection, rows, shared=shared)


def waits(connection: Connection, version: tuple[Any, ...]) -> Iterable[Wait]:
    """Who waits for whom, with the table and key where a row is waited for."""
    since = "COALESCE(w.waitstart, a.query_start)" if version >= (14,) else "a.query_start"
    keys = _Keys(connection)
    for row in _asked(connection, text(_WAITS.format(since=since))):
        key = row.named if row.page is None else keys.at(row)
        yield Wait(row.waiter, row.blocker, row.table_name, key, seconds_of(row.seconds))


def parties(connection: Connection, ids: Collection[int]) -> Mapping[int, LockConnection]:
    """What pg_stat_activity tells this account of these connections."""
    found = {0: LockConnection(0, state=PREPARED)}
    for pid, user, application, state, seconds, query in _asked(
        connection, _PARTIES, pids=list(ids)
    ):
        statement = None if query == "<insufficient privilege>" else query or None
        found[pid] = LockConnection(
            pid, user, application or None, state, seconds_of(seconds), statement
        )
    return found


def _asked(connection: Connection, statement: Executable, **parameters: Any) -> Sequence[Any]:
    """Ask in a transaction of its own, which an error ends."""
    with connection.begin():
        connection.execute(_HURRY)
        return connection.execute(statement, parameters).all()


def _marked(connection: Connection, rows: Sequence[Any], *, shared: bool) -> Mapping[int, bool]:
    """The owners of the transactions that these rows, of these tables, are marked with."""
    oids = sorted({oid for _, oid in rows})
    numbers = {xmax for xmax, _ in rows}
    for xmax in sorted(numbers, key=int)[-_GROUPS:]:
        numbers |= _members(connection, xmax, shared=shared)
    if not numbers:
        return {}
    if owners := _asked(connection, _OWNERS, xids=sorted(numbers), oids=oids):
        return {pid: True for (pid,) in owners}
    # The lock of a savepoint that was released is gone, and its number runs on.
    if not any(_runs(connection, number) for number in sorted(numbers, key=int)[-_GROUPS:]):
        return {}
    writers = _asked(connection, _WRITERS, oids=oids)
    return {pid: len(writers) == 1 for (pid,) in writers}


def _members(connection: Connection, group: str, *, shared: bool) -> set[str]:
    try:
        members = _asked(connection, _MEMBERS, group=group)
    except DBAPIError:  # it is a transaction, and no group
        return set()
    harmless = ("sh", "keysh") if shared else ()
    return {xid for xid, mode in members if mode not in harmless}


def _runs(connection: Connection, number: str) -> bool:
    try:
        return bool(_asked(connection, _STATUS, xid=int(number))[0][0] == "in progress")
    except DBAPIError:  # it is the number of a group, which no transaction has had yet
        return False


class _Keys:
    """The primary keys of rows that are known by their places."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._selects: dict[int, str | None] = {}

    def at(self, row: Row[Any]) -> str | None:
        """None where it cannot be read: no privilege, or the table itself is locked."""
        try:
            if row.oid not in self._selects:
                self._selects[row.oid] = self._select(row)
            select_key = self._selects[row.oid]
            if select_key is not None:
                place = f"({row.page},{row.place})"
                found = _asked(self._connection, text(select_key), place=place)
                return str(found[0][0]) if found else None
        except SQLAlchemyError:
            self._selects[row.oid] = None
        return None

    def _select(self, row: Row[Any]) -> str | None:
        columns = [name for (name,) in _asked(self._connection, _KEY_COLUMNS, oid=row.oid)]
        words = ", ".join(columns).replace(":", r"\:")
        table = row.table_name.replace(":", r"\:")  # both are quoted by the server
        return (
            f"SELECT concat_ws(', ', {words}) FROM {table} WHERE ctid = CAST(:place AS tid)"  # noqa: S608
            if columns
            else None
        )
