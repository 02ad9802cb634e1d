"""A lent Connection that is lost behind a COMMIT: what was committed is, and promises are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate


@pytest.mark.databases("mysql", "mariadb")  # where KILL ends a connection in the middle
def test_it_is_given_up_and_the_promise_is_kept(
    documents: Database, make_engine: Callable[..., sa.Engine]
) -> None:
    called: list[str] = []
    with make_engine().connect() as lent, LockingSession(bind=lent) as session:

        def lose(_: object) -> None:
            driver = lent.connection.driver_connection
            with documents.observer().connect() as observer:
                observer.exec_driver_sql(f"KILL {driver.thread_id()}")  # type: ignore[union-attr]

        session.get_entity(Order, 1, ForUpdate)
        session.on_commit(lambda: called.append("committed"))
        event.listen(session, "after_commit", lose, once=True)
        session.commit()
        assert called == ["committed"]
        with pytest.raises(DBAPIError):
            session.get_entity(Order, 2, ForUpdate)
        assert lent.invalidated
        session.rollback()
        lent.rollback()
        session.get_entity(Order, 2, ForUpdate)  # on another one
        session.on_commit(lambda: called.append("rolled back"))
        session.rollback()
    assert called == ["committed"]
