"""The outcome of a COMMIT whose answer was lost: ``pg_xact_status()``, since PostgreSQL 13.

https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-INFO-SNAPSHOT

An id alone does not identify a transaction forever.  After a crash, and on a promoted standby, the
server continues from its log.  The last ids may be missing there, and are then given to other
transactions: one that never committed would seem to have done so.  So the id is kept with the
history of its server: the cluster, the timeline, and the last recovery from a crash, at which the
server resets its statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ..error_codes import code_of
from ..transactions import CommitOutcomes, Outcome
from .errors import PostgreSQLErrors

# All are texts, which every driver returns alike.  A standby writes no log.
_HISTORY: Final = (
    "(SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()), "
    "CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL ELSE pg_catalog.substr("
    "pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END, "
    "pg_catalog.pg_stat_get_bgwriter_stat_reset_time()::pg_catalog.text"
)

_STATUS: Final = text(
    "SELECT pg_catalog.pg_xact_status(CAST(CAST(:id AS text) AS pg_catalog.xid8))"
)

# The checkpoint at the end of a recovery is the only one whose record is where its redo begins,
# except that of a shutdown, which precedes the server's start.  No transaction began before it.
# Its time has whole seconds: after a crash in the second of the start, the outcome is unknown.
_IN_RECOVERED_LOG: Final = text(
    "SELECT redo_lsn = checkpoint_lsn AND pg_catalog.current_setting('wal_level') <> 'minimal' "
    "AND checkpoint_time >= pg_catalog.pg_postmaster_start_time() "
    "AND CAST(CAST(:id AS text) AS numeric) < "
    "CAST(pg_catalog.split_part(next_xid, ':', 1) AS numeric) * 4294967296 "
    "+ CAST(pg_catalog.split_part(next_xid, ':', 2) AS numeric) "
    "FROM pg_catalog.pg_control_checkpoint()"
)

_NOT_ASSIGNED: Final = "22023"  # "transaction ID 1234 is in the future"


class PostgreSQLCommitOutcomes(CommitOutcomes):
    """The outcome by the transaction's id."""

    question: ClassVar[str] = (
        f"SELECT pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text, {_HISTORY}"
    )

    def outcome(self, connection: Connection, transaction: Sequence[Any]) -> Outcome:
        number, *history = transaction
        now = connection.exec_driver_sql(f"SELECT {_HISTORY}").one()
        cluster, timeline, _ = now
        if cluster != history[0]:
            return Outcome.UNKNOWN
        if timeline is None:
            return Outcome.IN_PROGRESS  # a standby, which may lag, and may be promoted
        try:
            status = connection.execute(_STATUS, {"id": number}).scalar_one()
        except DBAPIError as error:
            if code_of(PostgreSQLErrors(), error) != _NOT_ASSIGNED:
                raise
            return Outcome.ABORTED
        if status is None:
            return Outcome.UNKNOWN  # so old that the server has forgotten it
        found = Outcome(status)
        if found is not Outcome.COMMITTED or [*now] == history:
            return found
        recovered = timeline == history[1] and (
            connection.execute(_IN_RECOVERED_LOG, {"id": number}).scalar_one()
        )
        return Outcome.COMMITTED if recovered else Outcome.UNKNOWN
