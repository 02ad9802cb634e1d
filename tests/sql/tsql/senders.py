"""Texts that are sent to SQL Server, and are in no golden file."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Insert, Select, select
from sqlalchemy.dialects import mssql
from sqlalchemy.orm import sessionmaker

from lab.tsql.texts import METHODS
from sa_doclock import LockingSession, LockOptions, claim_each, lock_waits
from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp
from sa_doclock.guard.targets import targets_of
from sa_doclock.guard.touched import select_number, touched_rows
from tests.docs.pages import blocks_of
from tests.integration.alembic.scripted import Server, migrating
from tests.integration.alembic.test_operations import script_of
from tests.integration.guard.test_written_tables import STATEMENTS as STATEMENTS_OF_TABLES
from tests.integration.locking.plan_checks import STATEMENTS
from tests.sql.doctor import check_scripted
from tests.sql.models import Order
from tests.sql.scenarios import SCENARIOS, sent_by
from tests.sql.script import Script
from tests.sql.servers import pymssql, pyodbc, serving
from tests.sql.test_mssql_waits import ACTS, refused

DRIVERS: Mapping[str, Callable[[Script], Engine]] = {"pyodbc": pyodbc, "pymssql": pymssql}
TESTS = Path(__file__).resolve().parents[2]
#: A whole statement that no other database takes.
_TSQL = re.compile(
    r"^\s*(SELECT|SET|UPDATE|INSERT|DELETE|KILL|WAITFOR)\b.*"
    r"(sys\.|@@(SPID|LOCK_TIMEOUT|TRANCOUNT)|WITH \((UPDLOCK|HOLDLOCK|NOLOCK|TABLOCK)|LOCK_TIMEOUT|SUSER_SNAME|SHOWPLAN)",
    re.DOTALL,
)
_NAMED = re.compile(r"(?<!:):[a-z]\w*")
OPERATIONS = (EnableSnapshotIsolationOp, DisableSnapshotIsolationOp)


def over(driver: str) -> Iterator[str]:
    """Yield what sessions send over this driver, the scenarios of the golden file included."""
    for act in (*SCENARIOS.values(), _with_a_limit, _over_a_set):
        with serving("mssql", DRIVERS[driver]) as (engine, script):
            yield from filter(_is_sql, sent_by(act, engine, script))
    for other in (_as_a_batch, _claims, lock_waits, check_scripted):
        with serving("mssql", DRIVERS[driver]) as (engine, script):
            other(engine)
            yield from filter(_is_sql, script.sent)
    for act in ACTS.values():
        with serving("mssql", DRIVERS[driver]) as (engine, script):
            refused(engine, script, act)
            yield from filter(_is_sql, script.sent)


def by_migrations() -> Iterator[str]:
    """Yield what the Alembic operations send to a server."""
    for operation in OPERATIONS:
        server = Server(snapshot=int(operation is DisableSnapshotIsolationOp))
        server.read_committed_snapshot = bool(server.snapshot)
        with migrating(server) as op:
            op.invoke(operation(read_committed_snapshot=True))
        assert server.altered()
        yield from (sent.sql for sent in server.sent)


def of_the_guard() -> Iterator[str]:
    """Yield what the guard asks about the rows of UPDATEs and DELETEs, of one table and of several."""
    make: Any = mssql.dialect  # which has no types
    dialect = make(paramstyle="qmark")
    for statement, parameters in STATEMENTS_OF_TABLES.values():
        if parameters is not None or isinstance(statement, Insert):
            continue
        asked: list[Select[Any]] = [select_number(statement)]
        for target in targets_of(statement, None):
            touched = touched_rows(statement, target)
            asked += [] if touched is None else [touched.select_counted()]
        yield from (str(one.compile(dialect=dialect)) for one in asked)


def in_scripts() -> Iterator[str]:
    """Yield what ``--sql`` writes for the same."""
    for operation in OPERATIONS:
        for rcs in (False, True):
            yield script_of(operation, "mssql", rcs=rcs)


def by_tests() -> Iterator[str]:
    """Yield the T-SQL that tests send themselves: what they hint, lock, wait and ask by."""
    yield from STATEMENTS
    for path in sorted(TESTS.rglob("*.py")):
        if path.is_relative_to(TESTS / "sql"):
            continue  # those have their texts checked on the wire
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and _TSQL.search(text) and text not in STATEMENTS:
                yield _NAMED.sub("@P1", text).replace("{}000", "10000")


def on_pages() -> Iterator[str]:
    """Yield the SQL of the page about SQL Server."""
    for block in blocks_of("docs/mssql.md"):
        if block.language == "sql":
            yield block.text


def _with_a_limit(session: LockingSession) -> None:
    session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3)


def _over_a_set(session: LockingSession) -> None:
    session.scalars(session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=0.3)).all()


def _as_a_batch(engine: Engine) -> None:
    with LockingSession(engine, priority="batch") as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)


def _claims(engine: Engine) -> None:
    factory = sessionmaker(engine, class_=LockingSession)
    for claim in claim_each(factory, select(Order).where(Order.total > 0), limit=1):
        with claim as order:
            order.total = 0


def _is_sql(sent: str) -> bool:
    return sent not in METHODS
