"""The golden files are cut into the statements that they show."""

from __future__ import annotations

import pytest

from lab.tsql.texts import METHODS, statements, with_parameters
from tests.sql.golden import FOLDER

SENT = """\
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
    assert [(line, text.replace("\n", " ")) for line, text in statements(SENT)] == [
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
