"""The holders of a row of PostgreSQL, and the waits: from the row itself, and from pg_locks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql import Executable

from ...keys import Identity
from ...wait_info import KEY_MARK
from ..base import LockMonitoring
from ..named_locks import recent_keys
from ..names import quoted_name

# pg_locks.waitstart: https://www.postgresql.org/docs/release/14.0/
_HAS_WAIT_START = (14,)

# Each number is queried separately, because the query may raise.
_MOST_NUMBERS = 50

# A row stores its holder: xmax is a transaction, or a group of them.  A transaction, and each of
# its open savepoints, has a lock on its own number.
_MARK: Any = sa.literal_column("CAST(xmax AS text), tableoid")
_OID = sa.text("SELECT CAST(to_regclass(:name) AS oid)")
# A waiting request for such a lock on the table already blocks later requests.
_TABLE_LOCKS = sa.text("""
    SELECT DISTINCT COALESCE(pid, 0) FROM pg_locks
    WHERE locktype = 'relation' AND relation = :oid
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND mode IN ('ExclusiveLock', 'AccessExclusiveLock')""")
_WRITERS = sa.text("""
    SELECT DISTINCT COALESCE(t.pid, 0) FROM pg_locks t JOIN pg_locks x
    ON x.virtualtransaction = t.virtualtransaction
    WHERE t.locktype = 'relation' AND t.relation IN :oids AND t.granted
    AND t.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock')
    AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
    """).bindparams(sa.bindparam("oids", expanding=True))
_OWNERS = sa.text("""
    SELECT DISTINCT COALESCE(x.pid, 0) FROM pg_locks x JOIN pg_locks t
    ON x.virtualtransaction = t.virtualtransaction
    WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
    AND CAST(x.transactionid AS text) IN :xids
    AND t.locktype = 'relation' AND t.relation IN :oids
    """).bindparams(sa.bindparam("xids", expanding=True), sa.bindparam("oids", expanding=True))
_MEMBERS = sa.text("""
    SELECT CAST(xid AS text), mode FROM pg_get_multixact_members(CAST(:group AS xid))""")
# A row stores 32 of the 64 bits of a transaction's number; this is the one nearest to the newest.
_STATUS = sa.text("""
    SELECT txid_status(CASE WHEN number > 0 THEN number END) FROM (
    SELECT newest + ((CAST(:xid AS bigint) - newest + 2147483648) & 4294967295) - 2147483648
    AS number FROM (SELECT txid_snapshot_xmax(txid_current_snapshot()) AS newest) AS s) AS n""")
_CONNECTIONS = sa.text("""
    SELECT pid, usename, application_name, state,
    CAST(extract(epoch FROM statement_timestamp() - xact_start) AS float8),
    NULLIF(query, '<insufficient privilege>'), COALESCE(client_hostname, host(client_addr))
    FROM pg_stat_activity WHERE pid IN :pids""").bindparams(sa.bindparam("pids", expanding=True))
# The first waiter for a row has a lock on its location, the tuple.
_WAITS = """
    WITH w AS (SELECT DISTINCT ON (pid) * FROM pg_locks WHERE NOT granted ORDER BY pid),
    r AS (SELECT DISTINCT ON (pid) * FROM pg_locks WHERE locktype = 'tuple' ORDER BY pid)
    SELECT w.pid AS waiter, pg_blocking_pids(w.pid) AS blockers,
    COALESCE(r.relation, w.relation) AS oid,
    CASE WHEN d.oid IS NOT NULL
    THEN CAST(CAST(COALESCE(r.relation, w.relation) AS regclass) AS text) END AS table_name,
    CASE WHEN d.oid IS NOT NULL THEN r.page END AS page, r.tuple AS place,
    CASE WHEN w.locktype = 'advisory' THEN CASE w.objsubid
    WHEN 1 THEN CAST((CAST(w.classid AS bigint) << 32) | CAST(w.objid AS bigint) AS text)
    ELSE concat_ws(', ', w.classid, w.objid) END END AS named,
    substring(a.query FROM '/[*] {key_mark} (.*) [*]/') AS marked,
    CAST(extract(epoch FROM statement_timestamp() - {since}) AS float8) AS seconds
    FROM w LEFT JOIN r ON r.pid = w.pid LEFT JOIN pg_stat_activity a ON a.pid = w.pid
    LEFT JOIN pg_database d ON d.oid = COALESCE(r.database, w.database)
    AND d.datname = current_database()"""
_KEY_COLUMNS = sa.text("""
    SELECT quote_ident(attname) FROM pg_index JOIN pg_attribute
    ON attrelid = indrelid AND attnum = ANY (indkey)
    WHERE indrelid = :oid AND indisprimary
    ORDER BY array_position(CAST(indkey AS smallint[]), attnum)""")
# Not SET, which a pooler in between would pass on to another client.
_SHORT_TIMEOUTS = sa.select(
    sa.func.set_config("lock_timeout", "100ms", sa.literal(True)),
    sa.func.set_config("statement_timeout", "1s", sa.literal(True)),
)


class PostgreSQLMonitoring(LockMonitoring):
    def connection_id(self, connection: sa.Connection) -> int | None:
        driver: Any = connection.connection.driver_connection
        if hasattr(driver, "get_server_pid"):
            return int(driver.get_server_pid())  # asyncpg
        pid = getattr(getattr(driver, "info", None), "backend_pid", None)  # psycopg, psycopg2
        return pid if isinstance(pid, int) else None

    def holders(
        self, connection: sa.Connection, header: sa.Table, keys: Sequence[Identity], *, shared: bool
    ) -> Mapping[int, bool]:
        ((oid,),) = _query(connection, _OID, name=quoted_name(connection, header))
        if oid is None:
            return {}
        if found := _query(connection, _TABLE_LOCKS, oid=oid):  # its rows could not be read
            return {pid: True for (pid,) in found}
        if not keys:
            return {pid: False for (pid,) in _query(connection, _WRITERS, oids=[oid])}
        marks = sa.select(_MARK).select_from(header).where(sa.tuple_(*header.primary_key).in_(keys))
        rows = [row for row in _query(connection, marks) if row[0] != "0"]
        return _owners(connection, rows, shared=shared)

    def waits(self, connection: sa.Connection) -> Iterable[Sequence[Any]]:
        version = connection.dialect.server_version_info or _HAS_WAIT_START
        has_start = version >= _HAS_WAIT_START
        since = "COALESCE(w.waitstart, a.query_start)" if has_start else "a.query_start"
        rows = _query(connection, sa.text(_WAITS.format(since=since, key_mark=KEY_MARK)))
        keys = recent_keys()
        places = _Places(connection)
        for row in rows:
            named = keys.get(row.named, row.marked or row.named)
            key = named if row.page is None else places.key_at(row)
            for blocker in row.blockers:
                yield row.waiter, blocker, row.table_name, key, row.seconds

    def connections(
        self, connection: sa.Connection, ids: Collection[int]
    ) -> Iterable[Sequence[Any]]:
        return _query(connection, _CONNECTIONS, pids=ids)


def _query(connection: sa.Connection, statement: Executable, **parameters: Any) -> Sequence[Any]:
    """Return the rows, read in a separate transaction, which an error ends."""
    with connection.begin():
        connection.execute(_SHORT_TIMEOUTS)
        return connection.execute(statement, parameters).all()


def _owners(connection: sa.Connection, rows: Sequence[Any], *, shared: bool) -> Mapping[int, bool]:
    """Return the owners of the transactions that marked these rows of these tables."""
    oids = sorted({oid for _, oid in rows})
    numbers = {xmax for xmax, _ in rows}
    for number in _newest(numbers):  # each may be the number of a group
        numbers |= _members(connection, number, shared=shared)
    if not numbers:
        return {}
    if owners := _query(connection, _OWNERS, xids=sorted(numbers), oids=oids):
        return {pid: True for (pid,) in owners}
    # The lock of a released savepoint is gone, while its transaction number is still in progress.
    if not any(_is_running(connection, number) for number in _newest(numbers)):
        return {}
    writers = _query(connection, _WRITERS, oids=oids)
    return {pid: len(writers) == 1 for (pid,) in writers}


def _newest(numbers: set[str]) -> list[str]:
    return sorted(numbers, key=int)[-_MOST_NUMBERS:]


def _members(connection: sa.Connection, group: str, *, shared: bool) -> set[str]:
    try:
        members = _query(connection, _MEMBERS, group=group)
    except DBAPIError:  # it is a transaction, not a group
        return set()
    harmless = ("sh", "keysh") if shared else ()
    return {xid for xid, mode in members if mode not in harmless}


def _is_running(connection: sa.Connection, number: str) -> bool:
    try:
        return bool(_query(connection, _STATUS, xid=int(number))[0][0] == "in progress")
    except DBAPIError:  # a group's number, which no transaction has had yet
        return False


class _Places:
    """The primary keys of rows at known locations; each is read once."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._selects: dict[int, str | None] = {}
        self._keys: dict[tuple[int, int, int], str | None] = {}

    def key_at(self, row: sa.Row[Any]) -> str | None:
        """Return the key; None without the privilege to read it, or if the table is locked."""
        place = (row.oid, row.page, row.place)
        if place not in self._keys:
            self._keys[place] = self._read(row)
        return self._keys[place]

    def _read(self, row: sa.Row[Any]) -> str | None:
        try:
            if row.oid not in self._selects:
                self._selects[row.oid] = _key_select(self._connection, row)
            select_key = self._selects[row.oid]
            if select_key is not None:
                place = f"({row.page},{row.place})"
                found = _query(self._connection, sa.text(select_key), place=place)
                return str(found[0][0]) if found else None
        except SQLAlchemyError:
            self._selects[row.oid] = None
        return None


def _key_select(connection: sa.Connection, row: sa.Row[Any]) -> str | None:
    columns = [name for (name,) in _query(connection, _KEY_COLUMNS, oid=row.oid)]
    if not columns:
        return None
    words = ", ".join(columns).replace(":", r"\:")
    table = row.table_name.replace(":", r"\:")  # the server has quoted both
    return f"SELECT concat_ws(', ', {words}) FROM {table} WHERE ctid = CAST(:place AS tid)"  # noqa: S608
