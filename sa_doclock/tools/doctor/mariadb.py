"""Checks of MariaDB alone; checks of MySQL too are in innodb.py."""

from __future__ import annotations

from collections.abc import Iterator

from ...dialects import mariadb
from .check import Problem, Subject, check


@check("mariadb-version", "warning")
def version(subject: Subject) -> Iterator[Problem]:
    """The version is older than 10.6, the oldest that is supported. It has no SKIP LOCKED, claiming
    work fails, and some waits are not seen.
    """
    if subject.version and subject.version < mariadb.HAS_SKIP_LOCKED:
        text = f"MariaDB {subject.version_text} has no SKIP LOCKED"
        yield Problem(text, "upgrade to MariaDB 10.11 or 11.8")


@check("mariadb-idle-limit", "warning")
def idle_limit(subject: Subject) -> Iterator[Problem]:
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
