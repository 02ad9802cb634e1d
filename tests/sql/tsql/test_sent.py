"""Everything that is sent to SQL Server is good T-SQL, to its parser and to the rules beyond it.

It proves that no statement is refused for how it is written, and nothing about what one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest
import sqlalchemy as sa

from lab.tsql.checker import Checker
from lab.tsql.live import SentStatements
from lab.tsql.texts import METHODS, statements, with_parameters
from tests.sql.golden import FOLDER
from tests.sql.models import Order
from tests.sql.servers import pyodbc, serving
from tests.sql.test_checkouts import texts as texts_of_checkouts
from tests.sql.tsql import senders

GOLDEN = ("compiled", "sent", "waits")  # a statement after the other
SCRIPTS = ("migrations",)  # with GO between the batches, which the parser knows
SENT: dict[str, Callable[[], Iterator[str]]] = {
    **{driver: partial(senders.over, driver) for driver in senders.DRIVERS},
    "migrations": senders.by_migrations,
    "scripts of migrations": senders.in_scripts,
    "docs/mssql.md": senders.on_pages,
    "check-outs": partial(texts_of_checkouts, "mssql"),
    "the guard": senders.of_the_guard,
    "tests": senders.by_tests,
}


def assert_good(checker: Checker, texts: Iterable[tuple[str, str]]) -> None:
    """Fail with all that is wrong, each with where it stands."""
    places = {text: place for place, text in texts}  # a text is parsed once
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
    """``column.is_(False)`` compiles to ``IS 0``, which is no T-SQL."""
    found = [
        path.name
        for path in senders.TESTS.rglob("*.py")
        if path.name != "test_sent.py"
        and re.search(r"\.is_(not)?\((True|False)\)", path.read_text(encoding="utf-8"))
    ]
    assert found == []


# --------------------------------------------------------------------------------------------------
# The golden files are cut into the statements that they show.

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
# A statement that is no T-SQL fails the test that has sent it to a live SQL Server.


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
