"""ALTER DATABASE runs outside of any transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp
from tests.sql.tds.model import OFF, ON
from tests.sql.tds.server import TDSServer, said

ALTER = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION"


@contextmanager
def migrating(engine: Engine) -> Iterator[Operations]:
    """Yield Alembic's ``op`` in the transaction that env.py would begin."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        with context.begin_transaction():
            yield Operations(context)


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [(EnableSnapshotIsolationOp, OFF, ON), (DisableSnapshotIsolationOp, ON, OFF)],
)
def test_it_is_sent_outside_of_any_transaction(
    engine: Engine,
    wire: TDSServer,
    operation: type[EnableSnapshotIsolationOp | DisableSnapshotIsolationOp],
    before: int,
    after: int,
) -> None:
    wire.database.snapshot = before
    with migrating(engine) as op:
        op.invoke(operation())
        op.execute("UPDATE shop_order SET total = 0")
    assert wire.database.snapshot == after
    (sent,) = said(wire, ALTER)
    assert not sent.in_transaction
    (update,) = said(wire, "UPDATE shop_order")
    assert update.in_transaction  # what follows it is in one again


def test_within_one_it_would_be_refused(engine: Engine, wire: TDSServer) -> None:
    wire.database.snapshot = OFF
    with engine.connect() as connection, pytest.raises(DBAPIError, match=r"\(226\)"):
        connection.execute(text(f"{ALTER} ON"))
    assert wire.database.snapshot == OFF
