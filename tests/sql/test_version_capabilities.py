"""A dialect uses a capability from the version that introduced it, and not before.

Each version that a dialect compares with has a name in its module, a source beside it, and a case here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.exc import ResourceClosedError

import sa_doclock.dialects
from sa_doclock import LockNotSupported, LockOptions
from sa_doclock.dialects import check_support, strategy_for
from sa_doclock.dialects.base import LockStrategy, PlainReads, Reach
from sa_doclock.dialects.mysql import MySQLLocks
from sa_doclock.dialects.postgresql.limits import after_lock
from sa_doclock.dialects.sqlite import SQLiteLocks
from tests.sql import servers
from tests.sql.driver import Script
from tests.sql.servers import mysql, serving
from tests.support.rows import rows

Connect = Callable[[Script], Engine]
Has = Callable[[LockStrategy, Connection, Script], bool]


def postgresql(version: str) -> Connect:
    def connected(script: Script) -> Engine:
        engine = servers.postgresql(script)
        received = f"PostgreSQL {version} on x86_64-pc-linux-gnu"
        script.handshake = {**script.handshake, "pg_catalog.version()": received}
        return engine

    return connected


def supports(lock: LockOptions) -> Has:
    def has(strategy: LockStrategy, _connection: Connection, _script: Script) -> bool:
        with suppress(LockNotSupported):
            check_support(strategy, lock)
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
    return Reach.ONE_TABLE in strategy.statements.reach


def detects_conflicts(strategy: LockStrategy, _connection: Connection, _script: Script) -> bool:
    return PlainReads.CONFLICT in strategy.isolation.plain_reads["REPEATABLE READ"]


class Case(NamedTuple):
    """A capability.

    :ivar constant: the version, as module and name.
    :ivar before: a server of the last version without it.
    :ivar since: a server of the first version with it.
    """

    constant: str
    product: str
    before: Connect
    since: Connect
    has: Has


MODIFIERS = ("mysql.HAS_MODIFIERS", "mysql", mysql("8.0.0"), mysql("8.0.1"))
CASES = {
    "transaction_timeout": Case(
        "postgresql.limits.HAS_TRANSACTION_TIMEOUT",
        "postgresql",
        postgresql("16.14"),
        postgresql("17.0"),
        limits_whole_transaction,
    ),
    "waitstart": Case(
        "postgresql.monitoring._HAS_WAIT_START",
        "postgresql",
        postgresql("13.23"),
        postgresql("14.0"),
        reads_start_of_wait,
    ),
    "NOWAIT": Case(*MODIFIERS, supports(LockOptions.ForUpdate | LockOptions.NoWait)),
    "SKIP LOCKED": Case(*MODIFIERS, supports(LockOptions.ForUpdate | LockOptions.SkipLocked)),
    "FOR UPDATE OF": Case(*MODIFIERS, locks_one_table),
    "SKIP LOCKED of MariaDB": Case(
        "mariadb.HAS_SKIP_LOCKED",
        "mariadb",
        mysql("10.5.29-MariaDB"),
        mysql("10.6.0-MariaDB"),
        supports(LockOptions.ForUpdate | LockOptions.SkipLocked),
    ),
    "1020": Case(
        "mariadb._DETECTS_CONFLICTS",
        "mariadb",
        mysql("11.6.1-MariaDB"),
        mysql("11.6.2-MariaDB"),
        detects_conflicts,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_used_from_its_version_on(case: Case) -> None:
    for connect, expected in ((case.before, False), (case.since, True)):
        with serving(case.product, connect) as (engine, script), engine.connect() as connection:
            assert case.has(strategy_for(engine), connection, script) is expected


@pytest.mark.parametrize("since_2_0_45", [False, True])
def test_shared_read_needs_for_share_of_sqlalchemy(
    monkeypatch: pytest.MonkeyPatch, since_2_0_45: bool
) -> None:
    for one in MySQLDialect_pymysql.__mro__:
        if "use_mysql_for_share" in vars(one):
            monkeypatch.delattr(one, "use_mysql_for_share")
    dialect = MySQLDialect_pymysql()
    dialect.server_version_info = (9, 7, 0)
    if since_2_0_45:
        dialect.use_mysql_for_share = True  # type: ignore[attr-defined,unused-ignore]
    strategy = MySQLLocks(dialect)
    check_support(strategy, LockOptions.ForUpdate)
    refused = pytest.raises(LockNotSupported, match="SQLAlchemy")
    with nullcontext() if since_2_0_45 else refused:
        check_support(strategy, LockOptions.SharedRead)


@pytest.mark.parametrize(
    ("attributes", "refused"),
    [
        ({"autocommit": True}, True),
        ({"autocommit": False}, False),
        ({"autocommit": -1}, False),
        ({}, False),  # before Python 3.12
    ],
    ids=["autocommit", "pep-249", "legacy", "python-3.11"],
)
def test_the_autocommit_of_sqlite3(attributes: dict[str, Any], refused: bool) -> None:
    connection: Any = SimpleNamespace(
        connection=SimpleNamespace(dbapi_connection=SimpleNamespace(**attributes))
    )
    strategy = SQLiteLocks(SimpleNamespace(server_version_info=None))  # type: ignore[arg-type]
    with pytest.raises(LockNotSupported) if refused else nullcontext():
        strategy.check_autocommit(connection)


FOLDER = Path(sa_doclock.dialects.__file__).parent
MODULES = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts): path
    for path in sorted(FOLDER.rglob("*.py"))
}


def is_version(node: ast.expr | None) -> bool:
    """Return whether the node is a tuple of numbers."""
    return isinstance(node, ast.Tuple) and all(
        isinstance(one, ast.Constant) and type(one.value) is int for one in node.elts
    )


def versions_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the version names of the module, with their lines."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and is_version(node.value):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name):  # otherwise these are several numbers
                yield target.id, node.lineno


def unnamed(tree: ast.Module) -> list[str]:
    """Return the comparisons with an unnamed version."""
    compared = (node for node in ast.walk(tree) if isinstance(node, ast.Compare))
    return [ast.unparse(node) for node in compared if any(map(is_version, node.comparators))]


def without_source(text: str) -> list[str]:
    """Return the versions without an address on their line, or in the comment above it."""
    lines = text.splitlines()
    found = []
    for name, line in versions_of(ast.parse(text)):
        above = line - 1
        while above > 0 and lines[above - 1].startswith("#"):
            above -= 1
        if "https://" not in "".join(lines[above:line]):
            found.append(name)
    return found


def test_each_version_has_a_case() -> None:
    found = {
        f"{module}.{name}"
        for module, path in MODULES.items()
        for name, _ in versions_of(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == {case.constant for case in CASES.values()}


@rows("module", MODULES)
def test_each_version_has_a_name_and_a_source(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    assert unnamed(ast.parse(text)) == []
    assert without_source(text) == []


def test_the_rules_find_what_they_are_for() -> None:
    assert unnamed(ast.parse("if version >= (17,): pass")) == ["version >= (17,)"]
    assert unnamed(ast.parse("if version >= _HAS: pass")) == []
    assert without_source("_HAS = (17,)") == ["_HAS"]
    assert without_source("_HAS: Final = (17,)  # https://example.org") == []
    assert without_source("# https://example.org\n_HAS = (17,)") == []
    assert without_source("_NAMES = (1, 'b')") == []
