"""innodb_rollback_on_timeout: whether error 1205 undoes the statement, or the whole transaction.

The servers are scripted: none of the tests' own has it, which is an option at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import Ends
from tests.sql.models import Order
from tests.sql.script import Script
from tests.sql.servers import SERVERS, OperationalError, serving

ASKED = "innodb_rollback_on_timeout"
both = pytest.mark.parametrize("name", ["mysql", "mariadb"])


def undoing(name: str, **options: Any) -> Callable[[Script], Engine]:
    """A server with the option, and an engine with these execution options."""

    def connect(script: Script) -> Engine:
        engine = SERVERS[name](script)
        script.handshake = {**script.handshake, ASKED: [(ASKED, "ON")]}
        return engine.execution_options(**options)

    return connect


@both
@pytest.mark.parametrize("options", [{}, {"isolation_level": "READ COMMITTED"}], ids=str)
def test_it_is_known_whatever_the_options_of_the_connection(
    name: str, options: dict[str, Any]
) -> None:
    with serving(name, undoing(name, **options)) as (engine, _):
        strategy = strategy_for(engine)
        assert strategy.errors[1205].ends is Ends.TRANSACTION
        assert type(strategy).errors[1205].ends is Ends.NOTHING


@both
def test_it_is_off_elsewhere_and_asked_once(name: str) -> None:
    with serving(name) as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        assert not [text for text in script.sent if ASKED in text]
        assert strategy_for(engine).errors[1205].ends is Ends.NOTHING


def test_a_wait_that_has_undone_the_transaction_is_not_waited_again() -> None:
    with serving("mysql", undoing("mysql")) as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        script.failures.append(("FOR UPDATE", OperationalError(1205, "Lock wait timeout exceeded")))
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 2, LockOptions.ForUpdate, lock_timeout=60)
        assert session.held_locks == {}
