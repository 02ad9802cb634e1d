"""Checks of MySQL and MariaDB; the code of a check of one of them begins with its name."""

from __future__ import annotations

from collections.abc import Iterator

from ...dialects import mariadb, mysql
from .check import Problem, Subject, check, compatible_problem

_LONG_LOCK_WAIT = 300  # seconds; the default is 50
_LONG_IDLE = 3600  # seconds; the default is 8 hours
_LONG_TABLE_WAIT = 3600  # the default is a year on MySQL, a day on MariaDB


@check("innodb-deadlock-detection", "error")
def deadlock_detection(subject: Subject) -> Iterator[Problem]:
    """InnoDB does not look for deadlocks (`innodb_deadlock_detect`): sessions in a deadlock wait
    until `innodb_lock_wait_timeout`, then fail as if the row were only locked.
    """
    if subject.settings.get("innodb_deadlock_detect") == "OFF":
        yield Problem(
            "deadlocks are not detected: their sessions wait for innodb_lock_wait_timeout",
            "SET GLOBAL innodb_deadlock_detect = ON;",
        )


@check("innodb-lock-wait-timeout", "warning")
def lock_wait_timeout(subject: Subject) -> Iterator[Problem]:
    """Unless the program sets a `lock_timeout`, a session waits for a row for more than five
    minutes (`innodb_lock_wait_timeout`).
    """
    found = int(subject.settings.get("innodb_lock_wait_timeout", 0))
    if found > _LONG_LOCK_WAIT:
        yield Problem(
            f"a session waits {found} s for a row: innodb_lock_wait_timeout",
            "SET GLOBAL innodb_lock_wait_timeout = 50;",
        )


@check("innodb-table-lock-timeout", "info")
def table_lock_timeout(subject: Subject) -> Iterator[Problem]:
    """While another session alters a table, a session waits for it for more than an hour
    (`lock_wait_timeout`), and every later session waits behind it.
    """
    found = int(subject.settings.get("lock_wait_timeout", 0))
    if found > _LONG_TABLE_WAIT:
        yield Problem(
            f"a session waits {found} s for a table that is being altered: lock_wait_timeout",
            "SET GLOBAL lock_wait_timeout = 60;",
        )


@check("innodb-rollback-on-timeout", "info")
def rollback_on_timeout(subject: Subject) -> Iterator[Problem]:
    """A lock timeout rolls back the whole transaction, not only the statement
    (`innodb_rollback_on_timeout`): a savepoint does not help.
    """
    if subject.settings.get("innodb_rollback_on_timeout") == "ON":
        yield Problem(
            "a lock that is not granted in time rolls back the whole transaction",
            "innodb_rollback_on_timeout = OFF in the server's configuration, and a restart",
        )


@check("innodb-binlog-format", "error")
def binlog_format(subject: Subject) -> Iterator[Problem]:
    """The server writes its binary log by statement (`binlog_format`). Locks need READ COMMITTED,
    where the server then refuses every change: error 1665.
    """
    settings = subject.settings
    if settings.get("log_bin") == "ON" and settings.get("binlog_format") == "STATEMENT":
        yield Problem(
            "the binary log is written by statement, which refuses changes at READ COMMITTED",
            "SET GLOBAL binlog_format = 'ROW';",
        )


@check("innodb-read-only", "error")
def read_only(subject: Subject) -> Iterator[Problem]:
    """The server is read-only, like a replica (`read_only`, `super_read_only`, `innodb_read_only`):
    for most accounts ForUpdate raises LockNotSupported.
    """
    names = ("read_only", "super_read_only", "innodb_read_only")
    found = [name for name in names if subject.settings.get(name, "OFF") not in ("OFF", "0")]
    if found:
        yield Problem(
            f"the server is read-only: {', '.join(found)}",
            "connect to the primary; or SET GLOBAL read_only = OFF; where this is the primary",
        )


@check("innodb-log-deadlocks", "info")
def log_deadlocks(subject: Subject) -> Iterator[Problem]:
    """The server does not log deadlocks (`innodb_print_all_deadlocks`); SHOW ENGINE INNODB STATUS
    has only the last one.
    """
    if subject.settings.get("innodb_print_all_deadlocks") == "OFF":
        yield Problem(
            "deadlocks are not in the server's log: innodb_print_all_deadlocks is OFF",
            "SET GLOBAL innodb_print_all_deadlocks = ON;",
        )


@check("innodb-compatible", "warning")
def compatible(subject: Subject) -> Iterator[Problem]:
    """The server is another product with MySQL's protocol, or a proxy: TiDB, Vitess, ProxySQL and
    others. Locks that are not real there raise LockNotSupported; see [Compatible
    servers](compatible-servers.md). No test of sa_doclock has run there.
    """
    yield from compatible_problem(subject.strategy.compatible, "MySQL or MariaDB")


@check("other-storage-engines", "warning")
def other_storage_engines(subject: Subject) -> Iterator[Problem]:
    """MyISAM, Aria or MEMORY store tables of the database. They accept FOR UPDATE and silently lock
    nothing, and a ROLLBACK undoes nothing there. With mapped classes, only their own tables count.
    """
    if subject.headers:
        return  # table-cannot-lock checks those
    found = subject.rows(
        "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() "
        "AND table_type = 'BASE TABLE' AND engine <> 'InnoDB' ORDER BY table_name LIMIT 20"
    )
    for name, engine in found:
        quoted = subject.connection.dialect.identifier_preparer.quote_identifier(name)
        yield Problem(
            f"the table {name} is stored by {engine}, which has no row locks to hold",
            f"ALTER TABLE {quoted} ENGINE=InnoDB;",
        )


@check("mysql-version", "warning")
def mysql_version(subject: Subject) -> Iterator[Problem]:
    """The version is older than 8.0.1, and has no NOWAIT, SKIP LOCKED and FOR SHARE. A join locks
    the rows of all its tables, and the server does not report who holds a row.
    """
    if subject.version and subject.version < mysql.HAS_MODIFIERS:
        text = f"MySQL {subject.version_text} has no NOWAIT and no SKIP LOCKED"
        yield Problem(text, "upgrade to MySQL 8.4")


@check("mysql-idle-limit", "warning")
def mysql_idle_limit(subject: Subject) -> Iterator[Problem]:
    """MySQL limits idle connections (`wait_timeout`), not idle transactions. A program that stops
    in the middle of a transaction holds its locks for that long.
    """
    found = int(subject.settings.get("wait_timeout", 0))
    if found > _LONG_IDLE:
        yield Problem(
            f"an idle transaction holds its locks for {found / 3600:g} hours: wait_timeout",
            "SET GLOBAL wait_timeout = 600; with create_engine(url, pool_recycle=300); or give the "
            "sessions a hold_limit: sessionmaker(engine, class_=LockingSession, hold_limit=60)",
        )


@check("mysql-performance-schema", "warning")
def performance_schema(subject: Subject) -> Iterator[Problem]:
    """The Performance Schema is off: the server reports nothing about locks."""
    if subject.settings.get("performance_schema") == "OFF":
        yield Problem(
            "the Performance Schema is off: the server does not tell who holds a lock",
            "performance_schema = ON in the server's configuration, and a restart",
        )


@check("mariadb-version", "warning")
def mariadb_version(subject: Subject) -> Iterator[Problem]:
    """The version is older than 10.6, the oldest that is supported. It has no SKIP LOCKED, claiming
    work fails, and some waits are not seen.
    """
    if subject.version and subject.version < mariadb.HAS_SKIP_LOCKED:
        text = f"MariaDB {subject.version_text} has no SKIP LOCKED"
        yield Problem(text, "upgrade to MariaDB 10.11 or 11.8")


@check("mariadb-idle-limit", "warning")
def mariadb_idle_limit(subject: Subject) -> Iterator[Problem]:
    """The server has no limit for an idle transaction (`idle_transaction_timeout`). A program that
    stops in the middle of one holds its locks until it ends, or for `wait_timeout`.
    """
    names = ("idle_transaction_timeout", "idle_write_transaction_timeout")
    if all(subject.settings.get(name) == "0" for name in names):
        yield Problem(
            "an idle transaction holds its locks: idle_transaction_timeout is 0",
            "SET GLOBAL idle_transaction_timeout = 60; or give the sessions a hold_limit: "
            "sessionmaker(engine, class_=LockingSession, hold_limit=60)",
        )
