"""The order in which a session with a hold_limit asks the dialect for its limits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import LockWaits, ServerHoldLimit
from tests.support.models import Order

pytestmark = pytest.mark.databases("sqlite")


class Limits(LockWaits, ServerHoldLimit):
    """Limits of a server that are written down."""

    def __init__(self) -> None:
        self.set: list[tuple[str, object]] = []

    def limited(
        self,
        connection: sa.Connection,
        lock: LockOptions,
        seconds: float | None,
        *,
        few_rows: bool = False,
    ) -> AbstractContextManager[None]:
        self.set.append(("wait", (seconds, few_rows)))
        return nullcontext()

    def limit(self, connection: sa.Connection, seconds: float) -> None:
        self.set.append(("hold", seconds))


def test_the_clock_the_hold_and_the_wait_are_limited_once(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, strategy = Limits(), strategy_for(engine)
    monkeypatch.setattr(strategy, "hold_limit", limits)
    monkeypatch.setattr(strategy, "waits", limits)
    with LockingSession(engine, hold_limit=600) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=3)
        assert limits.set == [("hold", 600), ("wait", (3, True))]
        session.get_one_entity(Order, 2, LockOptions.ForUpdate)
        assert limits.set[2:] == [("wait", (None, True))]  # the transaction has the others
