"""A database that shows what is not committed: the checker says so."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_doclock import LockingSession
from sa_doclock.tools.cli.workload.tables import Document, fill
from tests.reliability.history.anomalies import Name
from tests.reliability.history.checker import check
from tests.reliability.history.record import History, Outcome, Transaction
from tests.reliability.history.stored import balance, first_state, note, set_total

# PostgreSQL has no such level, and SQLite has it only within one process's shared cache.
pytestmark = pytest.mark.databases("mysql", "mariadb")


def _names(engine: Engine) -> list[Name]:
    """One session writes a header, and rolls back after the other has read it."""
    fill(engine, {1: first_state(["N0"])})
    writer, reader = Transaction(1, 1, 3, Outcome.ABORTED), Transaction(2, 2, 4)
    with LockingSession(engine, guard="off") as one, LockingSession(engine) as other:
        written = one.get_one_entity(Document, 1)
        set_total(writer, written, 1)
        balance(written)
        one.flush()
        note(reader, other.get_one_entity(Document, 1), ["N0"])
        one.rollback()
    return [found.name for found in check(History([writer, reader]))]


def test_at_read_uncommitted_an_aborted_read_is_found(engine: Engine) -> None:
    dirty = engine.execution_options(isolation_level="READ UNCOMMITTED")
    assert _names(dirty) == [Name.G1A]


def test_at_read_committed_there_is_none(engine: Engine) -> None:
    clean = engine.execution_options(isolation_level="READ COMMITTED")
    assert _names(clean) == []
