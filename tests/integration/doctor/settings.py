"""Engines whose connections have a setting that is a fault, and engines that have it right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool, StaticPool

ALL = ("postgresql", "mysql", "mariadb", "sqlite")
SERVERS = ALL[:3]
INNODB = ("mysql", "mariadb")

Options = Mapping[str, Any]


class Case(NamedTuple):
    """A check by its code, and options of an engine with the fault and of one without."""

    code: str
    databases: tuple[str, ...]
    fault: Options
    healthy: Options


def _postgresql(code: str, setting: str, fault: str, healthy: str) -> Case:
    options = [{"connect_args": {"options": f"-c {setting}={value}"}} for value in (fault, healthy)]
    return Case(code, ("postgresql",), *options)


def _session(code: str, databases: tuple[str, ...], setting: str, fault: int, healthy: int) -> Case:
    """Return a case of a variable of MySQL or MariaDB that each session can set."""
    words = [f"SET SESSION {setting} = {value}" for value in (fault, healthy)]
    options = [{"connect_args": {"init_command": one}} for one in words]
    return Case(code, databases, *options)


def _sqlite(code: str, pragma: str, fault: str, healthy: str) -> Case:
    events = [
        {"pool_events": [(_sets(f"PRAGMA {pragma} = {value}"), "connect")]}
        for value in (fault, healthy)
    ]
    return Case(code, ("sqlite",), *events)


def _sets(statement: str) -> Any:
    def connect(dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.execute(statement)

    return connect


CASES = (
    Case("autocommit", SERVERS, {"isolation_level": "AUTOCOMMIT"}, {}),
    Case(
        "isolation-level",
        SERVERS,
        {"isolation_level": "SERIALIZABLE"},
        {"isolation_level": "READ COMMITTED"},
    ),
    Case("pool-reset", ALL, {"pool_reset_on_return": None}, {}),
    Case("pool-without-limit", ALL, {"poolclass": QueuePool, "max_overflow": -1}, {}),
    Case("pool-too-large", SERVERS, {"pool_size": 200_000}, {"pool_size": 5}),
    _postgresql("postgresql-idle-limit", "idle_in_transaction_session_timeout", "0", "60s"),
    _postgresql("postgresql-lock-timeout", "lock_timeout", "0", "30s"),
    _postgresql("postgresql-deadlock-timeout", "deadlock_timeout", "60s", "1s"),
    _postgresql("postgresql-read-only", "default_transaction_read_only", "on", "off"),
    _postgresql("postgresql-track-activities", "track_activities", "off", "on"),
    _postgresql("postgresql-log-lock-waits", "log_lock_waits", "off", "on"),
    _session("innodb-lock-wait-timeout", INNODB, "innodb_lock_wait_timeout", 1000, 50),
    _session("innodb-table-lock-timeout", INNODB, "lock_wait_timeout", 86400, 60),
    _session("mysql-idle-limit", ("mysql",), "wait_timeout", 28800, 600),
    _session("mariadb-idle-limit", ("mariadb",), "idle_transaction_timeout", 0, 60),
    _sqlite("sqlite-synchronous", "synchronous", "OFF", "NORMAL"),
    _sqlite("sqlite-foreign-keys", "foreign_keys", "OFF", "ON"),
    _sqlite("sqlite-read-only", "query_only", "ON", "OFF"),
    Case(
        "sqlite-busy-timeout",
        ("sqlite",),
        {"connect_args": {"timeout": 0}},
        {"connect_args": {"timeout": 5}},
    ),
    Case("sqlite-shared-connection", ("sqlite",), {"poolclass": StaticPool}, {}),
)

#: Variables that are the server's alone: what is a fault, what is right.
GLOBAL = {
    "innodb-deadlock-detection": ("innodb_deadlock_detect", "OFF", "ON"),
    "innodb-log-deadlocks": ("innodb_print_all_deadlocks", "OFF", "ON"),
    "innodb-read-only": ("read_only", "ON", "OFF"),
}


def engine_of(url: str, options: Options) -> sa.Engine:
    """Make the engine of a case."""
    return sa.create_engine(url, **options)
