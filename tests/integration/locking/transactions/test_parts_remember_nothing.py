"""The beliefs of a part about a transaction belong to the transaction: they are dropped with it, never cleared."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.session import context_of
from tests.support.models import Order


def remembered(session: LockingSession) -> dict[str, dict[str, str]]:
    """Return what each part has beside the transaction, as text: a container that grows is another."""
    return {
        type(part).__name__: {name: repr(value) for name, value in vars(part).items()}
        for part in context_of(session).parts.all
    }


def test_no_part_keeps_what_is_of_a_transaction(engine: sa.Engine) -> None:
    options: dict[str, Any] = {"hold_limit": 60, "commit_outcome": True, "priority": "batch"}
    options["pipeline"] = engine.driver == "psycopg"
    called: list[str] = []
    with LockingSession(engine, **options) as session:
        session.on_commit(lambda: called.append("rolled back before a transaction had begun"))
        session.rollback()
        before = remembered(session)
        assert {"HoldLimit", "AfterCommit"} <= before.keys()
        session.on_commit(lambda: called.append("committed"))
        order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        order.total += 1
        with session.begin_nested():
            session.on_commit(lambda: called.append("committed in a savepoint"))
            session.flush()
        assert remembered(session) == before
        session.commit()
        assert called == ["committed", "committed in a savepoint"]
        assert remembered(session) == before
