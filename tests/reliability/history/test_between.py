"""A change that comes between two reads of one document, step by step."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_doclock import LockingSession, LockOptions
from sa_doclock.tools.cli.workload.tables import Document, fill
from tests.reliability.history.anomalies import Name
from tests.reliability.history.checker import check
from tests.reliability.history.record import History, Transaction
from tests.reliability.history.stored import (
    balance,
    delete_detail,
    final_state,
    first_state,
    note,
    read_again,
    set_detail,
    set_total,
)

NAMES = ("N0", "N1")
PHANTOMS = {Name.P2, Name.P3, Name.DOCUMENT}

# With a rollback journal, nobody can commit beside a reader.
pytestmark = pytest.mark.not_databases("sqlite-journal")


def _committed(engine: Engine, tick: int) -> Transaction:
    """One detail is inserted, another deleted."""
    done = Transaction(tick, tick, tick)
    with LockingSession(engine) as session:
        document = session.get_one_entity(Document, 1, LockOptions.ForUpdate)
        note(done, document, NAMES)
        set_total(done, document, 1)
        set_detail(done, document, NAMES[1], 1)
        delete_detail(done, document, NAMES[0], 1)
        balance(document)
        session.save_changes()
    return done


def _names(engine: Engine, lock: LockOptions, *, again: bool) -> set[Name]:
    """Read a header, and its details or all of it again after the change."""
    if lock is LockOptions.None_ and engine.dialect.name in ("mysql", "mariadb"):
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    fill(engine, {1: first_state(NAMES[:1])})
    reader = Transaction(1, 1, 3)
    with LockingSession(engine) as session:
        document = session.get_one_entity(Document, 1, lock)
        if again:
            note(reader, document, NAMES)
        writer = _committed(engine, 2)
        if again:
            read_again(session, reader, [1], NAMES)
        else:
            note(reader, document, NAMES)
    return {found.name for found in check(History([reader, writer], final_state(engine)))}


def test_a_plain_read_gets_a_header_and_details_that_do_not_belong_together(engine: Engine) -> None:
    assert _names(engine, LockOptions.None_, again=False) == {Name.FRACTURED, Name.G_SINGLE}


def test_a_plain_read_gets_another_document_the_second_time(engine: Engine) -> None:
    assert _names(engine, LockOptions.None_, again=True) == PHANTOMS


@pytest.mark.parametrize("again", [False, True])
def test_a_snapshot_does_not(engine: Engine, again: bool) -> None:
    assert _names(engine, LockOptions.SnapshotRead, again=again) == set()
