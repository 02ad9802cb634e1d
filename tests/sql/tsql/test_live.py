"""A statement that is no T-SQL fails the test that has sent it to a live SQL Server."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from lab.tsql.live import SentStatements
from tests.sql.models import Order
from tests.sql.servers import pyodbc, serving


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
