"""Checks of MySQL alone; checks of MariaDB too are in innodb.py."""

from __future__ import annotations

from collections.abc import Iterator

from ...dialects import mysql
from .check import Problem, Subject, check

_LONG_IDLE = 3600  # seconds; the default is 8 hours


@check("mysql-version", "warning")
def version(subject: Subject) -> Iterator[Problem]:
    """The version is older than 8.0.1, and has no NOWAIT, SKIP LOCKED and FOR SHARE. A join locks
    the rows of all its tables, and the server does not report who holds a row.
    """
    if subject.version and subject.version < mysql.HAS_MODIFIERS:
        text = f"MySQL {subject.version_text} has no NOWAIT and no SKIP LOCKED"
        yield Problem(text, "upgrade to MySQL 8.4")


@check("mysql-idle-limit", "warning")
def idle_limit(subject: Subject) -> Iterator[Problem]:
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
