"""A function of gate.run() that is the victim of a deadlock: its caller has the error, the others are saved once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, DocumentGate, LockingSession, LockOptions
from tests.support.actors import PATIENCE
from tests.support.databases import Database
from tests.support.models import Order


@pytest.mark.not_databases("sqlite")  # one lock of the whole file cannot deadlock
def test_a_function_that_locks_another_document_is_the_victim_of_a_deadlock(
    documents: Database, session: LockingSession, engine: sa.Engine
) -> None:
    gate, sessions = DocumentGate(), sessionmaker(engine, class_=LockingSession)
    before = session.scalars(sa.select(Order.total).where(Order.id == 1)).one()
    session.rollback()
    has_begun = threading.Event()

    def add(_session: Any, order: Order) -> None:
        order.total += 1

    def lock_another(function_session: Any, order: Order) -> None:
        order.total += 100
        has_begun.set()
        function_session.get_one_entity(Order, 2, LockOptions.ForUpdate)

    with sessions() as other, ThreadPoolExecutor(3) as threads:
        other.get_one_entity(Order, 2, LockOptions.ForUpdate).total += 1
        other.flush()  # InnoDB chooses the transaction that has written less
        if documents.name == "postgresql":  # where the first one that looks is the victim
            other.execute(sa.text("SET LOCAL deadlock_timeout = '1min'"))
        victim = threads.submit(gate.run, sessions, Order, 1, lock_another)
        assert has_begun.wait(PATIENCE)
        behind = [threads.submit(gate.run, sessions, Order, 1, add) for _ in range(2)]
        other.get_one_entity(Order, 1, LockOptions.ForUpdate)
        other.commit()
        with pytest.raises(DeadlockDetected):
            victim.result(PATIENCE)
        for call in behind:
            call.result(PATIENCE)
    assert session.scalars(sa.select(Order.total).where(Order.id == 1)).one() == before + 2
