"""The ways in which a lock, or what is done under it, fails: one function is one cycle."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, InvalidRequestError, NoResultFound, PendingRollbackError

from sa_doclock import (
    DeadlockDetected,
    LockFailed,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    LockUpgradeRefused,
    UnlockedWrite,
    UnsavedChanges,
    claim_each,
    run_transaction,
)
from sa_doclock.tools.cli.workload.tables import NAMES, Detail, Document
from tests.reliability.leaks.footprint import Scene, Way
from tests.support.actors import PATIENCE

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
NO_WAIT = LockOptions.NoWait
AT_ONCE = FOR_UPDATE | NO_WAIT
MISSING = 99


class Whim(Exception):
    """The error that a function of the program raises for reasons of its own."""


def held_by_another(scene: Scene) -> None:
    with scene.held(), scene.sessions() as session, pytest.raises(LockNotAvailable):
        session.get_entity(Document, scene.ident, AT_ONCE)


def held_by_another_past_the_limit(scene: Scene) -> None:
    with scene.held(), scene.sessions() as session, pytest.raises(LockNotAvailable):
        session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=0.001)


def held_by_another_in_a_batch(scene: Scene) -> None:
    batch = LockingSession(scene.engine, priority="batch", lock_timeout=0.001)
    with scene.held(), batch as session, pytest.raises(LockNotAvailable):
        session.get_entity(Document, scene.ident, FOR_UPDATE)


def several_held_by_another(scene: Scene) -> None:
    with scene.held(), scene.sessions() as session:
        with pytest.raises(LockNotAvailable):
            session.get_entities(Document, range(5), AT_ONCE)
        with pytest.raises(LockNotAvailable):
            session.scalars(session.entity_set(Document, AT_ONCE)).all()


def name_held_by_another(scene: Scene) -> None:
    with scene.sessions() as holder, scene.sessions() as session:
        holder.lock_key("leaks")
        with pytest.raises(LockNotAvailable):
            session.lock_key("leaks", lock_timeout=0)


def in_the_midst_of_a_transaction(scene: Scene) -> None:
    with scene.sessions() as session, session.begin():
        with scene.held(), pytest.raises(LockNotAvailable):
            session.get_entity(Document, scene.ident, AT_ONCE)
        with pytest.raises(PendingRollbackError):
            session.get_entity(Document, 0, AT_ONCE)
        session.rollback()


def on_a_connection_that_goes_on(scene: Scene) -> None:
    with LockingSession(scene.connection) as session, session.begin():
        with scene.held(), pytest.raises(LockNotAvailable):
            session.get_entity(Document, scene.ident, AT_ONCE)
        with pytest.raises(PendingRollbackError):
            session.execute(sa.select(Document))
        session.rollback()


def in_a_session_that_goes_on(scene: Scene) -> None:
    with scene.held(), pytest.raises(LockNotAvailable):
        scene.session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=0.001)


def in_a_savepoint(scene: Scene) -> None:
    with scene.sessions() as session, session.begin():
        session.scalar(sa.select(sa.literal(1)))
        with scene.held(), pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entity(Document, scene.ident, AT_ONCE)


def informed_who_holds_it(scene: Scene) -> None:
    with scene.held(), LockingSession(scene.engine, diagnose=True) as session:
        with pytest.raises(LockNotAvailable) as raised:
            session.get_entity(Document, scene.ident, AT_ONCE)
        assert bool(raised.value.blockers) is (scene.database.name != "sqlite")
        del raised


def given_up_by_run_transaction(scene: Scene) -> None:
    def lock(session: LockingSession) -> None:
        session.get_entity(Document, scene.ident, AT_ONCE)

    with scene.held(), pytest.raises(LockNotAvailable):
        run_transaction(scene.sessions, lock, attempts=2, backoff=0, retry_not_available=True)


def missing(scene: Scene) -> None:
    with scene.sessions() as session:
        assert session.get_entity(Document, MISSING, FOR_UPDATE) is None
        with pytest.raises(NoResultFound), session.locked(Document, MISSING):
            pass


def a_flush(scene: Scene) -> None:
    with scene.sessions() as session:
        document = session.get_one_entity(Document, scene.ident, FOR_UPDATE)
        session.add(Detail(document_id=document.id, name=NAMES[0], value=1))
        with pytest.raises(IntegrityError):
            session.save_changes()
        with pytest.raises(InvalidRequestError):  # PendingRollbackError, unless COMMIT went with it
            session.get_entity(Document, scene.ident, FOR_UPDATE)


def a_listener(scene: Scene) -> None:
    with scene.sessions() as session:
        event.listen(session, "lock_acquired", _raise)
        with pytest.raises(Whim):
            session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)


def a_listener_of_the_engine(scene: Scene) -> None:
    """A listener that fails while the limit is set; the library listens to the connection itself."""
    event.listen(scene.engine, "before_execute", _raise_at_the_lock)
    try:
        with scene.sessions() as session, pytest.raises(Whim):
            session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)
    finally:
        event.remove(scene.engine, "before_execute", _raise_at_the_lock)


def the_block(scene: Scene) -> None:
    with scene.sessions() as session:
        block = session.locked(Document, scene.ident)
        document = block.__enter__()
        document.total += 1
        assert not block.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def the_block_of_a_claim(scene: Scene) -> None:
    claims = claim_each(scene.sessions, sa.select(Document), limit=2, on_error="collect")
    for claim in claims:
        with claim:
            raise Whim
    assert len(claims.report.failed) == 2


def what_was_to_follow_the_commit(scene: Scene) -> None:
    with scene.sessions() as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE)
        session.on_commit(_raise)
        with pytest.raises(Whim):
            session.save_changes()


def misuse(scene: Scene) -> None:
    with scene.sessions() as session:
        document = session.get_one_entity(Document, scene.ident, SHARED)
        with pytest.raises(LockUpgradeRefused):
            session.get_entity(Document, scene.ident, FOR_UPDATE)
        session.rollback()
        document.total += 1
        with pytest.raises(UnsavedChanges):
            session.get_entity(Document, scene.ident, FOR_UPDATE)
        with pytest.raises(UnlockedWrite):
            session.flush()
        session.rollback()
        with session.begin(), pytest.raises(LockMisuse):
            session.release_locks()


def what_cannot_be_locked(scene: Scene) -> None:
    with scene.sessions() as session, pytest.raises(LockNotSupported):
        session.scalars(session.entity_set(Document, FOR_UPDATE).distinct()).all()


def a_connection_that_is_lost(scene: Scene) -> None:
    with scene.sessions() as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)
        session.connection().invalidate()
        assert not session.held_locks


def changed_by_another_meanwhile(scene: Scene) -> None:
    """On SQLite the lock cannot be had after a read that is not the newest any more."""
    if scene.database.name != "sqlite":
        return
    with scene.sessions() as session, scene.sessions() as other:
        session.connection().exec_driver_sql("BEGIN")
        session.get_one(Document, scene.ident)
        with other.locked(Document, scene.ident) as document:
            document.details[0].value += 1
            document.add_up()
        with pytest.raises(LockFailed):  # LockNotAvailable on Python 3.10
            session.get_entity(Document, scene.ident, FOR_UPDATE)


def a_deadlock(scene: Scene) -> None:
    if scene.database.name == "sqlite":  # where one waits for the file, before it has anything
        return
    meeting = threading.Barrier(2)

    def is_victim(mine: int, theirs: int) -> bool:
        with scene.sessions() as session:
            session.get_one_entity(Document, mine, FOR_UPDATE)
            meeting.wait(PATIENCE)
            try:
                session.get_one_entity(Document, theirs, FOR_UPDATE)
            except DeadlockDetected:
                return True
            return False

    with ThreadPoolExecutor() as pool:
        assert sum(pool.map(is_victim, (0, 1), (1, 0))) == 1


def _raise(*_: object) -> None:
    raise Whim


def _raise_at_the_lock(_: object, statement: object, *__: object) -> None:
    if isinstance(statement, sa.Select) and Document.__table__ in statement.get_final_froms():
        raise Whim


FAILURES: tuple[Way, ...] = (
    *(held_by_another, held_by_another_past_the_limit, several_held_by_another),
    *(name_held_by_another, in_the_midst_of_a_transaction, in_a_savepoint),
    *(on_a_connection_that_goes_on, in_a_session_that_goes_on),
    *(given_up_by_run_transaction, missing, a_flush, a_listener, a_listener_of_the_engine),
    *(the_block, the_block_of_a_claim, what_was_to_follow_the_commit, misuse),
    *(what_cannot_be_locked, changed_by_another_meanwhile),
)

#: Which wait by their nature, or make a new connection each time.
RARE_FAILURES: tuple[Way, ...] = (
    *(held_by_another_in_a_batch, informed_who_holds_it, a_connection_that_is_lost, a_deadlock),
)
