"""Asked is the server that has refused, whichever the session would have chosen by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

import sa_doclock.features.diagnosis
from sa_doclock import LockConnection, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import side_connection
from tests.integration.monitoring.steps import up_to_date
from tests.support.databases import Database
from tests.support.models import Order

pytestmark = pytest.mark.databases("postgresql", "mysql", "mariadb")

NoWait = LockOptions.ForUpdate | LockOptions.NoWait


def test_of_a_set_that_is_bound_elsewhere(
    database: Database,
    engine: sa.Engine,
    make_engine: Callable[..., sa.Engine],
    other: LockingSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[sa.Engine] = []

    @contextmanager
    def noted(engine: sa.Engine, options: Mapping[str, Any]) -> Iterator[sa.Connection]:
        asked.append(engine)
        with side_connection(engine, options) as connection:
            yield connection

    monkeypatch.setattr(sa_doclock.features.diagnosis, "side_connection", noted)
    elsewhere = make_engine()
    other.get_entity(Order, 1, LockOptions.ForUpdate)
    with LockingSession(engine, diagnose=True) as session:
        orders = session.entity_set(Order, NoWait)

        def blockers() -> Sequence[LockConnection]:
            asked.clear()
            with pytest.raises(LockNotAvailable) as caught:
                session.scalars(orders, bind_arguments={"bind": elsewhere})
            assert asked == [elsewhere]
            return caught.value.blockers

        assert up_to_date(database, blockers, bool)
        with pytest.raises(LockNotAvailable):
            session.scalars(orders)
        assert asked == [elsewhere, engine]
