"""Tools that ask the server by themselves, while the program is in a transaction of the same engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_doclock import (
    DocumentGate,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    check_database,
    claim_each,
    explain_lock,
    lock_waits,
)
from sa_doclock.claims.query import ClaimQuery
from sa_doclock.claims.report import ClaimReport
from sa_doclock.claims.sessions import ClaimSessions
from tests.integration.questions.conftest import SAME, Run
from tests.integration.questions.server import watch
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    pytest.mark.not_databases(*SAME),
]

ForUpdate = LockOptions.ForUpdate
RENAMED = sa.update(Customer).where(Customer.id == 1).values(name="Zoe")
Tool = Callable[[sa.Engine, sa.Connection], object]


def claims(engine: sa.Engine, _: sa.Connection) -> None:
    for claim in claim_each(partial(LockingSession, engine), sa.select(Order)):
        with claim:
            pass


def claims_on_the_connection(_: sa.Engine, lent: sa.Connection) -> None:
    """Ask whether the table is a view, for sessions that join the program's transaction."""
    factory = partial(LockingSession, lent)
    sessions = ClaimSessions(factory, ClaimQuery(sa.select(Order), None), ClaimReport())
    with factory() as session:
        sessions._check(session)


def explains(engine: sa.Engine, _: sa.Connection) -> None:
    explain_lock(engine, Order, ForUpdate, lock_timeout=1)


def explains_a_session(_: sa.Engine, lent: sa.Connection) -> None:
    with Session(lent) as session:
        explain_lock(session, Order, ForUpdate)


def checks(engine: sa.Engine, _: sa.Connection) -> None:
    check_database(engine, Order.registry)


def waits(_: sa.Engine, lent: sa.Connection) -> None:
    lock_waits(lent)


def queues(engine: sa.Engine, _: sa.Connection) -> None:
    with LockingSession(engine, gate=DocumentGate()) as session:
        session.get_one_entity(Order, 1, ForUpdate)


def diagnoses(engine: sa.Engine, _: sa.Connection) -> None:
    with LockingSession(engine) as holder, LockingSession(engine, diagnose=True) as session:
        holder.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate, lock_timeout=0)


TOOLS: tuple[Tool, ...] = (
    *(claims, claims_on_the_connection, explains, explains_a_session),
    *(checks, waits, queues, diagnoses),
)


@pytest.mark.parametrize("tool", TOOLS)
def test_its_transaction_is_as_if_nothing_had_been_sent(
    run: Run, documents: Database, elsewhere: Callable[..., list[Any]], tool: Tool
) -> None:
    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent:
            is_in_transaction = watch(documents, lent)
            with lent.begin() as transaction:
                tool(engine, lent)
                assert transaction.is_active
                assert not is_in_transaction(lent)
                elsewhere(RENAMED)
                assert (
                    lent.execute(sa.select(Customer.name).where(Customer.id == 1)).scalar() == "Zoe"
                )

    options: Mapping[str, Any] = {"isolation_level": "REPEATABLE READ"}
    run(play, **options)
