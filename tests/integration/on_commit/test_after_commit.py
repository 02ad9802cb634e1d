"""Functions for on_commit() that record their calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.transaction.lock_transaction import LockTransaction
from tests.integration.locking.steps import finds_held
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]


class Promises:
    """The functions that were called, in order."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def note(self, name: str = "called") -> Callable[[], None]:
        """Make a function that records this name."""

        def function() -> None:
            self.kept.append(name)

        return function

    def fail(self, error: BaseException) -> Callable[[], None]:
        """Make a function that fails with this error."""

        def failing() -> None:
            self.kept.append(str(error))
            raise error

        return failing


# --------------------------------------------------------------------------------------------------
# on_commit() runs functions in order after the outermost commit, with the locks released.

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Run = Callable[..., list[Any]]


@pytest.fixture
def promises() -> Promises:
    return Promises()


def test_they_are_called_in_order_and_once(session: Session, promises: Promises) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    for name in "abc":
        session.on_commit(promises.note(name))
    assert promises.kept == []
    session.commit()
    assert promises.kept == ["a", "b", "c"]
    session.commit()
    session.rollback()
    assert promises.kept == ["a", "b", "c"]


def test_the_same_function_twice_is_called_twice(session: Session, promises: Promises) -> None:
    session.begin()
    function = promises.note()
    session.on_commit(function)
    session.on_commit(function)
    session.commit()
    assert promises.kept == ["called", "called"]


def test_what_they_return_is_of_no_account(session: Session) -> None:
    session.on_commit(lambda: 17)
    session.commit()


def test_the_locks_are_gone_and_the_changes_there(
    session: Session, other: Session, elsewhere: Run
) -> None:
    found: list[Any] = []

    def look() -> None:
        found.append(finds_held()(other))
        found.append(elsewhere(sa.select(Order.total).where(Order.id == 1)))
        found.append(dict(session.held_locks))
        other.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait).total = 32
        other.commit()

    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.on_commit(look)
    session.commit()
    assert found == [False, [(31,)], {}]
    assert session.get_one(Order, 1).total == 32


def test_before_the_commit_the_lock_is_there(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.on_commit(lambda: None)
    session.flush()
    assert finds_held()(other)


def test_savepoints_are_no_commit(session: Session, promises: Promises) -> None:
    with session.begin():
        session.on_commit(promises.note("before"))
        with session.begin_nested():
            session.on_commit(promises.note("in it"))
            with session.begin_nested():
                session.on_commit(promises.note("in that"))
            session.on_commit(promises.note("in it, after"))
        session.on_commit(promises.note("after"))
        assert promises.kept == []
    assert promises.kept == ["before", "in it", "in that", "in it, after", "after"]


def test_save_changes_in_a_callers_transaction_is_no_commit(
    session: Session, promises: Promises
) -> None:
    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.on_commit(promises.note())
        session.save_changes()
        assert promises.kept == []
    assert promises.kept == ["called"]


def test_save_changes_that_commits_is_one(session: Session, promises: Promises) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.on_commit(promises.note())
    session.save_changes()
    assert promises.kept == ["called"]


def test_a_block_calls_them_at_its_end(session: Session, promises: Promises) -> None:
    with session.locked(Order, 1):
        session.on_commit(promises.note("outer"))
        with session.locked(Order, 2):
            session.on_commit(promises.note("inner"))
        assert promises.kept == []
    assert promises.kept == ["outer", "inner"]


def test_a_block_of_a_reader_commits_nothing(session: Session, promises: Promises) -> None:
    with session.locked(Order, 1, LockOptions.SharedRead):
        session.on_commit(promises.note())
    session.commit()
    assert promises.kept == []


def test_without_a_transaction_the_next_commit_is_meant(
    session: Session, promises: Promises
) -> None:
    session.on_commit(promises.note())
    assert not session.in_transaction()
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.save_changes()
    assert promises.kept == ["called"]


def test_even_if_nothing_is_done_in_it(session: Session, promises: Promises) -> None:
    session.on_commit(promises.note("a"))
    session.commit()
    session.on_commit(promises.note("b"))
    with session.begin():
        pass
    assert promises.kept == ["a", "b"]


def test_the_next_transaction_has_promises_of_its_own(session: Session, promises: Promises) -> None:
    for name in "abc":
        session.get_one_entity(Order, 1, ForUpdate).total += 1
        session.on_commit(promises.note(name))
        session.commit()
    assert promises.kept == ["a", "b", "c"]
    session.get_one_entity(Order, 1, ForUpdate)
    session.on_commit(promises.note("d"))
    session.rollback()
    session.get_one_entity(Order, 1, ForUpdate)
    session.commit()
    assert promises.kept == ["a", "b", "c"]


def test_sessions_have_promises_of_their_own(
    session: Session, other: Session, promises: Promises
) -> None:
    session.on_commit(promises.note("mine"))
    other.on_commit(promises.note("theirs"))
    other.commit()
    assert promises.kept == ["theirs"]
    session.commit()
    assert promises.kept == ["theirs", "mine"]


def test_a_promise_made_in_a_promise_is_for_the_next_commit(
    session: Session, promises: Promises
) -> None:
    session.on_commit(lambda: session.on_commit(promises.note()))
    session.commit()
    assert promises.kept == []
    session.commit()
    assert promises.kept == ["called"]


def test_a_commit_by_the_other_database_calls_is_a_commit(
    session: Session, promises: Promises
) -> None:
    session.begin()
    session.add(Customer(id=9, name="new"))  # the commit itself flushes it
    session.on_commit(promises.note())
    session.commit()
    assert promises.kept == ["called"]


def test_what_cannot_be_called_is_refused_at_once(session: Session) -> None:
    for wrong in (None, "print", 1, [print]):
        with pytest.raises(TypeError, match=r"on_commit\(\) must be a function"):
            session.on_commit(wrong)  # type: ignore[arg-type]
    session.commit()


# --------------------------------------------------------------------------------------------------
# on_commit() does not run functions for work that was not committed.

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
