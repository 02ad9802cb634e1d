"""What a server is asked by the first connection of its engine, whatever the connection's options."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from sa_doclock.dialects import strategy_for
from tests.models import Order

pytestmark = pytest.mark.databases("mysql", "mariadb")


def test_whether_a_time_out_undoes_the_transaction(make_engine: Callable[..., sa.Engine]) -> None:
    engine = make_engine(execution_options={"isolation_level": "READ COMMITTED"})
    asked: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: object, __: object, statement: str, *___: object) -> None:
        if "rollback_on_timeout" in statement:
            asked.append(statement)

    for _ in range(2):
        with LockingSession(engine) as session:
            session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert asked == ["SELECT @@innodb_rollback_on_timeout"]
    assert 1205 not in strategy_for(engine).transaction_gone


def test_where_it_does_the_time_out_is_the_end(make_engine: Callable[..., sa.Engine]) -> None:
    engine = make_engine()

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def answer(_: object, __: object, statement: str, parameters: object, *___: object) -> object:
        return statement.replace("@@innodb_rollback_on_timeout", "1"), parameters

    strategy = strategy_for(engine)
    assert 1205 in strategy.transaction_gone & strategy.transaction_dead
    assert 1205 not in type(strategy).transaction_gone
