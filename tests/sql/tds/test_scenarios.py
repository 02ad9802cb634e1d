"""The texts in the golden files are what the drivers send, and good T-SQL."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Engine

from lab.tsql.checker import Checker
from lab.tsql.texts import METHODS, with_parameters
from sa_doclock import DocLockError, LockingSession
from tests.sql.scenarios import SCENARIOS, Act, sent_by
from tests.sql.servers import serving, take_first_lock
from tests.sql.tds.server import TDSServer, wrong

_PARAMETERS = re.compile(r"  -- .*$", re.DOTALL)
_OWN_LABEL = re.compile(r"\b(\w+)\.(\w+) AS \1_\2\b")  # Session.get() of SQLAlchemy 2.0


def play(act: Act, engine: Engine, wire: TDSServer) -> list[str]:
    """Let a session act, and close it; return the SQL that came over the wire."""
    take_first_lock(engine)
    wire.sent.clear()
    with LockingSession(engine) as session:
        try:
            act(session)
        except DocLockError as error:
            return [*_sql(wire), f"-- raises {type(error).__name__}"]
    return _sql(wire)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_driver_sends_what_it_is_given(engine: Engine, wire: TDSServer, name: str) -> None:
    with serving("mssql") as (scripted, script):
        expected = [_as_sent(line) for line in sent_by(SCENARIOS[name], scripted, script)]
    assert play(SCENARIOS[name], engine, wire) == [sql for sql in expected if sql not in METHODS]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_statement_is_within_a_transaction(
    engine: Engine, wire: TDSServer, name: str
) -> None:
    play(SCENARIOS[name], engine, wire)
    outside = [sent for sent in wire.sent if sent.text and not sent.in_transaction]
    assert outside == []


def test_the_parser_is_asked_about_all_that_was_seen(
    engine: Engine, wire: TDSServer, parser: Checker | None
) -> None:
    if parser is None:
        pytest.skip("no T-SQL parser")
    misspelt = "SELECT t.a FROM t WITH (UPDLOK)"
    with engine.connect() as connection:
        connection.exec_driver_sql(misspelt)
    wire.sent.clear()
    assert list(wrong(wire, parser)) == [misspelt]
    wire.seen.remove(misspelt)  # else this test fails as it ends


def _sql(wire: TDSServer) -> list[str]:
    return [_OWN_LABEL.sub(r"\1.\2", sent.text) for sent in wire.sent if sent.text]


def _as_sent(line: str) -> str:
    if line.startswith("-- raises"):
        return line
    return " ".join(with_parameters(_PARAMETERS.sub("", line)).split())
