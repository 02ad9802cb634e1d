"""The version from which a dialect uses a capability: it does in that version, and not in the one before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import ResourceClosedError

from sa_doclock import LockNotSupported, LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import LockStrategy
from sa_doclock.dialects.postgresql.hold_limit import after_lock
from tests.sql import servers
from tests.sql.script import Script
from tests.sql.servers import mysql, serving

Connect = Callable[[Script], Engine]
Has = Callable[[LockStrategy, Connection, Script], bool]


def postgresql(version: str) -> Connect:
    def connected(script: Script) -> Engine:
        engine = servers.postgresql(script)
        told = f"PostgreSQL {version} on x86_64-pc-linux-gnu"
        script.handshake = {**script.handshake, "pg_catalog.version()": told}
        return engine

    return connected


def supports(lock: LockOptions) -> Has:
    def has(strategy: LockStrategy, _connection: Connection, _script: Script) -> bool:
        with suppress(LockNotSupported):
            strategy.check_support(lock)
            return True
        return False

    return has


def limits_whole_transaction(_: LockStrategy, connection: Connection, _script: Script) -> bool:
    return "'transaction_timeout'" in after_lock(connection, 1)


def reads_start_of_wait(strategy: LockStrategy, connection: Connection, script: Script) -> bool:
    assert strategy.monitoring is not None
    script.sent.clear()
    with suppress(ResourceClosedError):  # the script has no rows for it
        list(strategy.monitoring.waits(connection))
    assert script.sent
    return any("waitstart" in str(statement) for statement in script.sent)


def locks_one_table(strategy: LockStrategy, _connection: Connection, _script: Script) -> bool:
    return strategy.statements.locks_one_table_of_join


def detects_conflicts(strategy: LockStrategy, _connection: Connection, _script: Script) -> bool:
    return "REPEATABLE READ" in strategy.isolation.conflicting


@pytest.mark.parametrize(
    ("product", "before", "since", "has"),
    [
        ("postgresql", postgresql("16.14"), postgresql("17.0"), limits_whole_transaction),
        ("postgresql", postgresql("13.23"), postgresql("14.0"), reads_start_of_wait),
        (
            "mysql",
            mysql("8.0.0"),
            mysql("8.0.1"),
            supports(LockOptions.ForUpdate | LockOptions.NoWait),
        ),
        (
            "mysql",
            mysql("8.0.0"),
            mysql("8.0.1"),
            supports(LockOptions.ForUpdate | LockOptions.SkipLocked),
        ),
        ("mysql", mysql("8.0.0"), mysql("8.0.1"), locks_one_table),
        (
            "mariadb",
            mysql("10.5.29-MariaDB"),
            mysql("10.6.0-MariaDB"),
            supports(LockOptions.ForUpdate | LockOptions.SkipLocked),
        ),
        ("mariadb", mysql("11.6.1-MariaDB"), mysql("11.6.2-MariaDB"), detects_conflicts),
    ],
    ids=[
        "transaction_timeout",
        "waitstart",
        "NOWAIT",
        "SKIP LOCKED",
        "FOR UPDATE OF",
        "SKIP LOCKED of MariaDB",
        "1020",
    ],
)
def test_it_is_used_from_its_version_on(
    product: str, before: Connect, since: Connect, has: Has
) -> None:
    for connect, expected in ((before, False), (since, True)):
        with serving(product, connect) as (engine, script), engine.connect() as connection:
            assert has(strategy_for(engine), connection, script) is expected
