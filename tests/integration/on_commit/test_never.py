"""on_commit: never called for what did not happen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.transaction.lock_transaction import LockTransaction
from tests.integration.on_commit.promises import Promises
from tests.support.models import Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture
def promises() -> Promises:
    return Promises()


ENDS: dict[str, Callable[[Session], object]] = {
    "rollback": LockingSession.rollback,
    "release_locks": LockingSession.release_locks,
    "close": LockingSession.close,
    "reset": LockingSession.reset,
    "invalidate": LockingSession.invalidate,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_end_of_the_transaction_drops_it(
    session: Session, promises: Promises, end: Callable[[Session], object]
) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.on_commit(promises.note())
    end(session)
    session.get_one_entity(Order, 1, ForUpdate)
    session.commit()
    assert promises.kept == []


@pytest.mark.parametrize("end", [end for name, end in ENDS.items() if name != "release_locks"])
def test_also_where_no_transaction_had_begun(
    session: Session, promises: Promises, end: Callable[[Session], object]
) -> None:
    session.on_commit(promises.note())
    end(session)
    session.commit()
    assert promises.kept == []


def test_nothing_was_begun_that_release_locks_could_end(
    session: Session, promises: Promises
) -> None:
    # "Without a transaction it does nothing."
    session.on_commit(promises.note())
    session.release_locks()
    session.commit()
    assert promises.kept == ["called"]


def test_an_exception_in_the_block_drops_it(session: Session, promises: Promises) -> None:
    with suppress(LookupError), session.begin():
        session.on_commit(promises.note("begin"))
        raise LookupError
    with suppress(LookupError), session.locked(Order, 1):
        session.on_commit(promises.note("locked"))
        raise LookupError
    session.commit()
    assert promises.kept == []


def test_the_release_of_a_savepoint_is_no_commit_though_its_begin_was_interrupted(
    session: Session, promises: Promises, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.on_commit(promises.note())
    event.listen(session.connection(), "commit", raising(LookupError))
    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(LockTransaction, "mark", raising(KeyboardInterrupt))
        session.begin_nested()
    with suppress(LookupError):
        session.commit()  # releases the savepoint first
    session.rollback()
    assert promises.kept == []


def raising(error: type[BaseException]) -> Callable[..., None]:
    """Return a function that raises this error."""

    def fail(*_: object) -> None:
        raise error

    return fail


def test_the_rollback_of_a_savepoint_drops_what_was_promised_in_it(
    session: Session, promises: Promises
) -> None:
    with session.begin():
        session.on_commit(promises.note("before"))
        with session.begin_nested() as savepoint:
            session.on_commit(promises.note("in it"))
            savepoint.rollback()
        session.on_commit(promises.note("after"))
    assert promises.kept == ["before", "after"]


def test_a_savepoint_in_a_savepoint_goes_with_it(session: Session, promises: Promises) -> None:
    with session.begin():
        with session.begin_nested() as outer:
            session.on_commit(promises.note("outer"))
            with session.begin_nested():
                session.on_commit(promises.note("released, then rolled back"))
            outer.rollback()
        with session.begin_nested():
            session.on_commit(promises.note("kept"))
            with session.begin_nested() as inner:
                session.on_commit(promises.note("inner"))
                inner.rollback()
    assert promises.kept == ["kept"]


def test_an_exception_in_a_savepoint_drops_what_was_promised_in_it(
    session: Session, promises: Promises
) -> None:
    with session.begin():
        session.on_commit(promises.note("kept"))
        with suppress(LookupError), session.begin_nested():
            session.get_one_entity(Order, 1, ForUpdate)
            session.on_commit(promises.note("dropped"))
            raise LookupError
    assert promises.kept == ["kept"]


def test_what_was_promised_before_the_transaction_outlives_its_savepoint(
    session: Session, promises: Promises
) -> None:
    session.on_commit(promises.note())
    with session.begin_nested() as savepoint:
        savepoint.rollback()
    session.commit()
    assert promises.kept == ["called"]


def test_the_release_of_a_savepoint_is_no_commit(session: Session, promises: Promises) -> None:
    session.begin()
    with session.begin_nested():
        session.on_commit(promises.note())
    session.rollback()
    session.commit()
    assert promises.kept == []
