"""Everything sent to SQL Server is valid T-SQL, to its parser and to the rules beyond it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, Insert, Select, select
from sqlalchemy.dialects import mssql
from sqlalchemy.orm import sessionmaker

from lab.tsql.checker import Checker
from lab.tsql.live import SentStatements
from lab.tsql.texts import METHODS, statements, with_parameters
from sa_doclock import LockingSession, LockOptions, claim_each, lock_waits
from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp
from sa_doclock.guard.targets import Write, targets_of
from sa_doclock.guard.touched import select_number, touched_rows
from tests.docs.pages import blocks_of
from tests.integration.alembic.scripted import Server, migrating
from tests.integration.alembic.test_operations import script_of
from tests.integration.guard.test_written_tables import STATEMENTS as STATEMENTS_OF_TABLES
from tests.integration.locking.sets.test_plans import STATEMENTS
from tests.sql.driver import Script
from tests.sql.golden import FOLDER
from tests.sql.models import Order
from tests.sql.scenarios import SCENARIOS, sent_by
from tests.sql.servers import pymssql, pyodbc, serving
from tests.sql.test_checkouts import texts as texts_of_checkouts
from tests.sql.test_doctor import check_scripted
from tests.sql.test_mssql_waits import ACTS, refused

# --------------------------------------------------------------------------------------------------
# Texts that are sent to SQL Server but are not in a golden file.

DRIVERS: Mapping[str, Callable[[Script], Engine]] = {"pyodbc": pyodbc, "pymssql": pymssql}
TESTS = Path(__file__).resolve().parents[2]
#: A whole statement that no other database accepts.
_TSQL = re.compile(
    r"^\s*(SELECT|SET|UPDATE|INSERT|DELETE|KILL|WAITFOR)\b.*"
    r"(sys\.|@@(SPID|LOCK_TIMEOUT|TRANCOUNT)|WITH \((UPDLOCK|HOLDLOCK|NOLOCK|TABLOCK)|LOCK_TIMEOUT|SUSER_SNAME|SHOWPLAN)",
    re.DOTALL,
)
_NAMED = re.compile(r"(?<!:):[a-z]\w*")
OPERATIONS = (EnableSnapshotIsolationOp, DisableSnapshotIsolationOp)


def over(driver: str) -> Iterator[str]:
    """Yield the texts that sessions send with this driver, including the scenarios of the golden file."""
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
    """Yield the texts that the Alembic operations send to a server."""
    for operation in OPERATIONS:
        server = Server(snapshot=int(operation is DisableSnapshotIsolationOp))
        server.read_committed_snapshot = bool(server.snapshot)
        with migrating(server) as op:
            op.invoke(operation(read_committed_snapshot=True))
        assert server.altered()
        yield from (sent.sql for sent in server.sent)


def of_the_guard() -> Iterator[str]:
    """Yield the guard's questions about the rows of UPDATEs and DELETEs, for one table and for several."""
    make: Any = mssql.dialect  # without types
    dialect = make(paramstyle="qmark")
    for statement, parameters in STATEMENTS_OF_TABLES.values():
        if parameters is not None or isinstance(statement, Insert):
            continue
        asked: list[Select[Any]] = [select_number(Write(statement))]
        for target in targets_of(Write(statement)):
            touched = touched_rows(Write(statement), target)
            asked += [] if touched is None else [touched.select_counted()]
        yield from (str(one.compile(dialect=dialect)) for one in asked)


def in_scripts() -> Iterator[str]:
    """Yield the script that ``--sql`` writes for the same operations."""
    for operation in OPERATIONS:
        for rcs in (False, True):
            yield script_of(operation, "mssql", rcs=rcs)


def by_tests() -> Iterator[str]:
    """Yield the T-SQL that tests send themselves: for hints, locks, waits and questions."""
    yield from STATEMENTS
    for path in sorted(TESTS.rglob("*.py")):
        if path.is_relative_to(TESTS / "sql"):
            continue  # the wire checks their texts
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


# --------------------------------------------------------------------------------------------------
# Everything sent to SQL Server is valid T-SQL, to its parser and to the rules beyond it.
#
# It proves that no statement is rejected for its form, and nothing about what one does.

GOLDEN = ("compiled", "sent", "waits")  # one statement at a time
SCRIPTS = ("migrations",)  # with GO between the batches, which the parser understands
SENT: dict[str, Callable[[], Iterator[str]]] = {
    **{driver: partial(over, driver) for driver in DRIVERS},
    "migrations": by_migrations,
    "scripts of migrations": in_scripts,
    "docs/mssql.md": on_pages,
    "check-outs": partial(texts_of_checkouts, "mssql"),
    "the guard": of_the_guard,
    "tests": by_tests,
}


def assert_good(checker: Checker, texts: Iterable[tuple[str, str]]) -> None:
    """Fail with all faults, each with its place."""
    places = {text: place for place, text in texts}  # each text is parsed once
    assert places, "there is nothing to parse"
    verdicts = checker.check([with_parameters(text) for text in places])
    wrong = [
        f"{place}: {'; '.join(verdict.syntax + verdict.rules)}\n{text}"
        for (text, place), verdict in zip(places.items(), verdicts, strict=True)
        if not verdict
    ]
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOLDEN)
def test_every_statement_of_a_golden_file(checker: Checker, kind: str) -> None:
    path = FOLDER / kind / "mssql.sql"
    found = statements(path.read_text(encoding="utf-8"))
    assert_good(checker, ((f"{kind}/{path.name}:{line}", text) for line, text in found))


@pytest.mark.parametrize("kind", SCRIPTS)
def test_every_batch_of_a_golden_script(checker: Checker, kind: str) -> None:
    path = FOLDER / kind / "mssql.sql"
    assert_good(checker, [(f"{kind}/{path.name}", path.read_text(encoding="utf-8"))])


@pytest.mark.slow
@pytest.mark.parametrize("sender", SENT)
def test_every_statement_that_is_sent_by(checker: Checker, sender: str) -> None:
    assert_good(checker, ((sender, text) for text in SENT[sender]()))


def test_no_golden_file_is_left_out() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/mssql.sql")} == {*GOLDEN, *SCRIPTS}


def test_no_test_compares_with_a_truth_value_by_is() -> None:
    """``column.is_(False)`` compiles to ``IS 0``, which is not T-SQL."""
    found = [
        path.name
        for path in TESTS.rglob("*.py")
        if path.name != "test_sent.py"
        and re.search(r"\.is_(not)?\((True|False)\)", path.read_text(encoding="utf-8"))
    ]
    assert found == []


# --------------------------------------------------------------------------------------------------
# The golden files are split into the statements they show.

SENT_TEXTS = """\
-- a heading ------
SET LOCK_TIMEOUT 300; SELECT a
FROM t
WHERE b = ?  -- 1
SELECT a, (
SELECT max(b)
FROM u) AS c
FROM t
UPDATE t SET a=?  -- 7
(commit)
(back to the pool)
SAVE TRANSACTION a

-- another
SELECT a;
FROM t"""


def test_where_a_statement_begins_and_ends() -> None:
    assert [(line, text.replace("\n", " ")) for line, text in statements(SENT_TEXTS)] == [
        (2, "SET LOCK_TIMEOUT 300; SELECT a FROM t WHERE b = ?  -- 1"),
        (5, "SELECT a, ( SELECT max(b) FROM u) AS c FROM t"),
        (9, "UPDATE t SET a=?  -- 7"),
        (12, "SAVE TRANSACTION a"),
        (15, "SELECT a;"),
        (16, "FROM t"),
    ]


@pytest.mark.parametrize("kind", ["compiled", "sent", "waits"])
def test_no_line_is_left_out(kind: str) -> None:
    golden = (FOLDER / kind / "mssql.sql").read_text(encoding="utf-8")
    cut = [line for _, text in statements(golden) for line in text.splitlines()]
    lines = [line for line in golden.splitlines() if line and not line.startswith("--")]
    assert cut == [line for line in lines if line not in METHODS]


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("a = ? AND b IN (?, ?)", "a = @P1 AND b IN (@P2, @P3)"),
        ("a = %(a_1)s", "a = @P1"),
        ("a IN (__[POSTCOMPILE_a_1]) AND b = ?", "a IN (@P1) AND b = @P2"),
        ("[why?] = '?' AND b = ''''  -- ?", "[why?] = '?' AND b = ''''  -- ?"),
        ("a = N'it''s ?' AND b = ?", "a = N'it''s ?' AND b = @P1"),
    ],
)
def test_how_a_parameter_is_spelt(text: str, spelt: str) -> None:
    assert with_parameters(text) == spelt


# --------------------------------------------------------------------------------------------------
# A statement that is not T-SQL fails the test that sent it to a live SQL Server.


@pytest.mark.usefixtures("checker")
@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        (sa.select(Order.id).where(Order.id == 1), None),
        (sa.text("SELECT id FROM orders LIMIT 1"), "Incorrect syntax near LIMIT"),
        (sa.select(Order.id).where(Order.total.is_(0)), "Incorrect syntax near @P1"),
    ],
    ids=["good", "of the test", "of the ORM"],
)
def test_a_statement_is_parsed(statement: sa.Executable, wrong: str | None) -> None:
    sent = SentStatements()
    with serving("mssql", pyodbc) as (engine, _):
        sent.watch(engine)
        with engine.connect() as connection:
            connection.execute(statement)
    if wrong is None:
        sent.check()
    else:
        with pytest.raises(pytest.fail.Exception, match=wrong):
            sent.check()


def test_a_machine_without_the_parser_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.tsql.live._checker", lambda: None)
    SentStatements().check()
