"""Checks of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

from ...dialects import quoted_name
from . import postgresql_poolers
from .check import Problem, Subject, check, compatible_problem

_OLDEST = (12,)
_BAD_INDEXES = range(4)  # 14.0 to 14.3: https://www.postgresql.org/docs/release/14.4/
_SLOW_DETECTION = 10_000  # milliseconds; the default is 1000


def _milliseconds(subject: Subject, name: str) -> int:
    """Return a limit; 0: none, -1: this version has no such setting."""
    return int(subject.settings.get(name, -1))


@check("postgresql-idle-limit", "warning")
def idle_limit(subject: Subject) -> Iterator[Problem]:
    """The server has no limit for a program that stops in the middle of a transaction, at a
    breakpoint or in a slow call, and holds its locks (`idle_in_transaction_session_timeout`). If a
    pooler sends reads to a standby, change that first: otherwise this limit ends the standby's
    connection, and with it the transaction, while the program waits for a lock.
    """
    if _milliseconds(subject, "idle_in_transaction_session_timeout") == 0:
        yield Problem(
            "an idle transaction holds its locks forever: idle_in_transaction_session_timeout is 0",
            postgresql_poolers.cure_of_idle_limit(subject),
        )


@check("postgresql-lock-timeout", "info")
def lock_timeout(subject: Subject) -> Iterator[Problem]:
    """A statement waits forever for a lock, unless the program sets a limit (`lock_timeout` is 0)."""
    if _milliseconds(subject, "lock_timeout") == 0:
        yield Problem(
            "a statement without a limit of its own waits for a lock for ever: lock_timeout is 0",
            "ALTER ROLE CURRENT_USER SET lock_timeout = '30s'; or LockingSession(lock_timeout=30)",
        )


@check("postgresql-deadlock-timeout", "warning")
def deadlock_timeout(subject: Subject) -> Iterator[Problem]:
    """The server looks for a deadlock only after `deadlock_timeout`. A deadlock lasts that long,
    more than ten seconds, with everybody behind it.
    """
    found = _milliseconds(subject, "deadlock_timeout")
    if found > _SLOW_DETECTION:
        yield Problem(
            f"a deadlock is found only after {found / 1000:g} s: deadlock_timeout",
            "ALTER SYSTEM SET deadlock_timeout = '1s'; SELECT pg_reload_conf();",
        )


@check("postgresql-standby", "error")
def standby(subject: Subject) -> Iterator[Problem]:
    """The server is a standby, which cannot lock rows: every lock but SnapshotRead raises
    LockNotSupported.
    """
    if subject.ask("SELECT pg_is_in_recovery()"):
        yield Problem(
            "the server is a standby, where no row can be locked",
            "connect to the primary, as by target_session_attrs=read-write in the URL; read here "
            "with SnapshotRead",
        )


@check("postgresql-read-only", "error")
def read_only(subject: Subject) -> Iterator[Problem]:
    """Transactions begin READ ONLY (`default_transaction_read_only`), and cannot lock rows."""
    if subject.settings.get("default_transaction_read_only") == "on":
        yield Problem(
            "transactions begin READ ONLY, and cannot lock a row: default_transaction_read_only",
            "ALTER ROLE CURRENT_USER RESET default_transaction_read_only;",
        )


@check("postgresql-version", "error")
def version(subject: Subject) -> Iterator[Problem]:
    """The version is older than 12, the oldest that sa_doclock supports; or it is 14.0 to 14.3,
    where CREATE INDEX CONCURRENTLY can make an index that misses rows, and a lock by it finds none.
    """
    found = subject.version
    if found and found < _OLDEST:
        yield Problem(
            f"PostgreSQL {subject.version_text} is older than 12, the oldest that is supported",
            "upgrade the server",
        )
    elif found[:1] == (14,) and found[1:2] and found[1] in _BAD_INDEXES:
        yield Problem(
            f"PostgreSQL {subject.version_text} can make indexes that miss rows",
            "upgrade to 14.4 or later, then REINDEX DATABASE",
        )


@check("postgresql-compatible", "warning")
def compatible(subject: Subject) -> Iterator[Problem]:
    """The server is another product with PostgreSQL's protocol, such as CockroachDB, YugabyteDB or
    Redshift, and has its own locks. Locks that are not real there raise LockNotSupported; see
    [Compatible servers](compatible-servers.md). No test of sa_doclock has run there.
    """
    yield from compatible_problem(subject.strategy.compatible, "PostgreSQL")


@check("postgresql-statistics-privilege", "warning")
def statistics_privilege(subject: Subject) -> Iterator[Problem]:
    """Without the role `pg_read_all_stats` the account sees other accounts' connections, but not
    their statements and times.
    """
    if not subject.ask("SELECT pg_has_role(CURRENT_USER, 'pg_read_all_stats', 'USAGE')"):
        yield Problem(
            "this account does not see the statements of other accounts that hold locks",
            f"GRANT pg_read_all_stats TO {subject.account};",
        )


@check("postgresql-track-activities", "warning")
def track_activities(subject: Subject) -> Iterator[Problem]:
    """The server does not record the statements of its connections (`track_activities`): holders
    have neither state nor statement.
    """
    if subject.settings.get("track_activities") == "off":
        yield Problem(
            "the server does not record the activity of connections: holders have no state and no statement",
            "ALTER SYSTEM SET track_activities = on; SELECT pg_reload_conf();",
        )


@check("postgresql-log-lock-waits", "info")
def log_lock_waits(subject: Subject) -> Iterator[Problem]:
    """The server does not log long waits for locks (`log_lock_waits`). With it, the log has each
    wait longer than `deadlock_timeout`, and its holder.
    """
    if subject.settings.get("log_lock_waits") == "off":
        yield Problem(
            "the server does not log long lock waits: log_lock_waits is off",
            "ALTER SYSTEM SET log_lock_waits = on; SELECT pg_reload_conf();",
        )


@check("postgresql-prepared-transactions", "warning")
def prepared_transactions(subject: Subject) -> Iterator[Problem]:
    """A transaction was prepared for a two-phase commit more than a minute ago, and is unfinished.
    It holds its locks until somebody ends it, even after a restart of the server.
    """
    query = (
        "SELECT gid, owner, CAST(extract(epoch FROM now() - prepared) AS integer) "
        "FROM pg_prepared_xacts WHERE database = current_database() "
        "AND now() - prepared > interval '1 minute' ORDER BY prepared LIMIT 5"
    )
    for gid, owner, seconds in subject.rows(query):
        quoted = str(gid).replace("'", "''")
        yield Problem(
            f"the prepared transaction {gid!r} of {owner} has held its locks for {seconds} s",
            f"COMMIT PREPARED '{quoted}'; or ROLLBACK PREPARED '{quoted}';",
        )


@check("foreign-table", "error")
def foreign_table(subject: Subject) -> Iterator[Problem]:
    """A header is a view, a foreign table or a materialized view. A lock on a view locks rows of
    its tables. A lock on a foreign table is on another server, for as long as that one keeps it. A
    materialized view cannot be locked.
    """
    for table in subject.tables:
        kind = subject.ask(
            "SELECT CAST(relkind AS text) FROM pg_class WHERE oid = to_regclass(:name)",
            name=quoted_name(subject.connection, table),
        )
        relation = {"v": "a view", "f": "a foreign table", "m": "a materialized view"}.get(
            str(kind)
        )
        if relation is not None:
            yield Problem(
                f"{table.fullname} is {relation}, which has no rows of its own to lock",
                "map the class to the table that has the rows",
            )
