"""get_document on a hot standby of PostgreSQL: of one moment, while the primary's writes come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockNotSupported, LockOptions, WrongIsolation
from tests.integration.locking.standby import Replication, replication, replications
from tests.integration.locking.steps import FIRST, TEN_MORE, Seen, add_ten, recorded, seen
from tests.support.models import Order

__all__ = ["replication", "replications"]

pytestmark = pytest.mark.databases("postgresql")

SnapshotRead = LockOptions.SnapshotRead


def document(session: LockingSession, lock: LockOptions = SnapshotRead) -> Seen:
    order = session.get_document(Order, 1, lock)
    assert order is not None
    assert "lines" in sa.inspect(order).dict
    return seen(order)


def test_a_document_is_of_one_moment_while_writes_come_in(replication: Replication) -> None:
    come_in: list[str] = []

    def ten_more_come_in(_: object, __: object, statement: str, *___: object) -> None:
        if "FROM lk_line" in statement and not come_in:
            come_in.append(statement)
            with LockingSession(replication.primary) as writer:
                add_ten(writer)  # in mid-update
                replication.catch_up()
                writer.save_changes()
            replication.catch_up()

    with LockingSession(replication.standby) as session:
        event.listen(replication.standby, "before_cursor_execute", ten_more_come_in)
        assert document(session) == FIRST
        assert come_in
        assert dict(session.held_locks) == {(Order, (1,)): SnapshotRead}
        session.release_locks()
        assert document(session) == TEN_MORE


def test_without_it_the_parts_are_newer_than_the_header(replication: Replication) -> None:
    come_in: list[str] = []

    def ten_more_come_in(_: object, __: object, statement: str, *___: object) -> None:
        if "FROM lk_line" in statement and not come_in:
            come_in.append(statement)
            with LockingSession(replication.primary) as writer:
                add_ten(writer)
                writer.save_changes()
            replication.catch_up()

    with LockingSession(replication.standby) as session:
        event.listen(replication.standby, "before_cursor_execute", ten_more_come_in)
        assert document(session, LockOptions.None_) == (30, [20, 20])


def test_nothing_is_locked_or_written_there(replication: Replication) -> None:
    calls: list[Callable[[LockingSession, LockOptions], Any]] = [
        lambda session, lock: session.get_document(Order, 1, lock),
        lambda session, lock: session.get_documents(Order, [1, 2], lock),
    ]
    with LockingSession(replication.standby) as session:
        for lock in (LockOptions.ForUpdate, LockOptions.SharedRead):
            for call in calls:
                with pytest.raises(LockNotSupported, match="a standby server cannot lock rows"):
                    call(session, lock)
                assert not session.in_transaction()
        assert len(session.get_documents(Order, [1, 2], SnapshotRead)) == 2
        with recorded(replication.standby) as statements:
            with pytest.raises(WrongIsolation, match="read-only"):
                session.execute(sa.update(Order).values(total=1))
            session.get_one(Order, 1).total = 1
            with pytest.raises(WrongIsolation, match="read-only"):
                session.flush()
        assert not [text for text in statements if "UPDATE" in text]
