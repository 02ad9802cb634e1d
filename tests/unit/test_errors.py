"""Each reaction has its error class, each error can be caught as SQLAlchemy's, and its text helps at 3 a.m."""

from __future__ import annotations

import copy
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, ForeignKey, exc
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    make_transient_to_detached,
    mapped_column,
    relationship,
)

import sa_doclock
from sa_doclock import (
    CheckedOut,
    Checkout,
    CheckoutLost,
    CommitUnknown,
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockingSession,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    LockOrderViolation,
    LockUpgradeRefused,
    SnapshotConflict,
    StaleDocument,
    UnlockedWrite,
    UnsavedChanges,
    WrongIsolation,
    document,
)
from sa_doclock.errors import outcome_of
from tests.support.models import Order, Voucher
from tests.support.rows import rows

Failure = type[LockFailed] | type[CommitUnknown]

PARENTS: dict[type[DocLockError], type[Exception]] = {
    LockFailed: DocLockError,
    LockNotAvailable: LockFailed,
    DeadlockDetected: LockFailed,
    SnapshotConflict: LockFailed,
    LockLost: LockFailed,
    CommitUnknown: DocLockError,
    StaleDocument: DocLockError,
    CheckedOut: DocLockError,
    CheckoutLost: DocLockError,
    LockNotSupported: DocLockError,
    LockMisuse: DocLockError,
    UnsavedChanges: LockMisuse,
    WrongIsolation: LockMisuse,
    LockUpgradeRefused: LockMisuse,
    LockOrderViolation: LockMisuse,
    UnlockedWrite: LockMisuse,
}
FROM_DATABASE = [kind for kind in PARENTS if issubclass(kind, (LockFailed, CommitUnknown))]
OURS = [kind for kind in PARENTS if kind not in FROM_DATABASE]
RETRYABLE = {LockNotAvailable, DeadlockDetected, SnapshotConflict}
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "pickle, oldest": lambda error: pickle.loads(pickle.dumps(error, 2)),
}
each_kind = rows("kind", PARENTS, ids=lambda kind: kind.__name__)
each_copy = rows("copied", COPIES.values(), ids=COPIES)


def _failed(kind: Failure, **more: Any) -> LockFailed | CommitUnknown:
    return kind(
        "Order 42: held",
        entity=Order,
        ident=42,
        lock=LockOptions.ForUpdate,
        statement="SELECT 1",
        params={"key": 42},
        orig=sqlite3.OperationalError("database is locked"),
        **more,
    )


@each_kind
def test_the_tree_is_that_of_the_contract(kind: type[DocLockError]) -> None:
    assert kind.__bases__[0] is PARENTS[kind]
    assert getattr(sa_doclock, kind.__name__) is kind
    assert kind.__name__ in sa_doclock.__all__


def test_no_error_is_missing_here() -> None:
    def below(kind: type[DocLockError]) -> set[type[DocLockError]]:
        return {kind, *(each for sub in kind.__subclasses__() for each in below(sub))}

    assert below(DocLockError) - {DocLockError} == set(PARENTS)


@each_kind
def test_retryable_says_whether_the_same_again_may_succeed(kind: type[DocLockError]) -> None:
    assert kind("text").retryable is (kind in RETRYABLE)


@rows("kind", FROM_DATABASE)
@rows("caught", [exc.OperationalError, exc.DBAPIError, exc.SQLAlchemyError])
def test_what_the_database_said_is_caught_as_before(kind: Failure, caught: type[Exception]) -> None:
    with pytest.raises(caught):
        raise _failed(kind)


@rows("kind", OURS)
def test_what_the_program_did_is_no_error_of_the_database(kind: type[DocLockError]) -> None:
    assert not issubclass(kind, exc.SQLAlchemyError)


@each_kind
def test_what_is_not_known_is_none(kind: type[DocLockError]) -> None:
    error = kind("text")
    assert (error.entity, error.ident, error.lock) == (None, None, None)
    assert error.args[0] == "text"


@pytest.mark.parametrize("kind", FROM_DATABASE)
def test_the_reason_has_no_sql_and_no_parameters(kind: Failure) -> None:
    error = _failed(kind)
    assert "[SQL: SELECT 1]" in str(error)
    error.add_details("; held by connection 7: SELECT 2")
    error.args = (f"{error.args[0]} (given up after 3 attempts)",)
    assert "SELECT 2" in str(error)
    for one in (error, *(copied(error) for copied in COPIES.values())):
        assert one.reason == "Order 42: held (given up after 3 attempts)"


@rows("kind", OURS)
def test_the_reason_of_a_misuse_is_its_text(kind: type[DocLockError]) -> None:
    error = kind("do this")
    assert error.reason == error.args[0] == "do this"
    error.add_details("  It was read by SELECT 1.")
    assert (error.reason, error.args[0]) == ("do this", "do this  It was read by SELECT 1.")


@each_kind
def test_the_numbers_of_an_error_are_numbers(kind: type[DocLockError]) -> None:
    assert kind("text").attempts == 0
    assert not issubclass(kind, LockFailed) or kind("text").waited == 0.0


@each_copy
def test_a_copy_tells_of_the_same_check_out(copied: Callable[[Any], Any]) -> None:
    noon = datetime(2026, 1, 1, 12)  # noqa: DTZ001  # naive, as a Checkout has it
    taken = CheckedOut("text", checkout=Checkout(Order, 42, "ann", 3, noon, noon))
    assert copied(taken).checkout == taken.checkout
    assert copied(CheckoutLost("text", expected=3)).expected == 3


@each_copy
@pytest.mark.parametrize("kind", FROM_DATABASE)
def test_a_copy_of_a_failure_tells_the_same(kind: Failure, copied: Callable[[Any], Any]) -> None:
    error = _failed(kind)
    twin = copied(error)
    assert type(twin) is kind
    assert str(twin) == str(error)
    assert (twin.entity, twin.ident, twin.lock) == (Order, 42, LockOptions.ForUpdate)
    assert (twin.statement, twin.params, twin.retryable) == (
        "SELECT 1",
        {"key": 42},
        error.retryable,
    )
    assert isinstance(twin.orig, sqlite3.OperationalError)
    assert twin.connection_invalidated is False


@each_copy
@pytest.mark.parametrize("kind", OURS)
def test_a_copy_of_a_misuse_tells_the_same(
    kind: type[DocLockError], copied: Callable[[Any], Any]
) -> None:
    twin = copied(kind("text", entity=Voucher, ident=(2024, 1), lock=LockOptions.SharedRead))
    assert type(twin) is kind
    assert twin.args[0] == "text"
    assert (twin.entity, twin.ident, twin.lock) == (Voucher, (2024, 1), LockOptions.SharedRead)


@pytest.mark.parametrize("kind", FROM_DATABASE)
def test_the_text_has_the_statement_and_the_page_on_our_errors(kind: Failure) -> None:
    text = str(_failed(kind))
    assert text.startswith("Order 42: held\n[SQL: SELECT 1]")
    assert "'key': 42" in text
    assert text.count("Background on this error") == 1
    assert text.endswith(f"/errors.html#{outcome_of(_failed(kind))})")


def test_hidden_parameters_stay_hidden() -> None:
    text = str(_failed(LockNotAvailable, hide_parameters=True))
    assert "'key': 42" not in text
    assert "parameters hidden" in text


@pytest.fixture
def taken(engine: Engine) -> Iterator[None]:
    """Let another connection hold the write lock of the file."""
    with closing(sqlite3.connect(str(engine.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize(
    ("entity", "ident", "words"),
    [
        (Order, 1, "Order 1"),
        (Voucher, (2024, 1), r"Voucher \(2024, 1\)"),
        (Voucher, {"year": 2024, "number": 1}, r"Voucher \{'year': 2024, 'number': 1\}"),
    ],
    ids=["scalar", "tuple", "dict"],
)
def test_a_failure_names_the_document_as_the_caller_did(
    session: LockingSession, entity: type[Any], ident: Any, words: str
) -> None:
    with pytest.raises(
        LockNotAvailable, match=rf"^{words} FOR UPDATE NOWAIT on sqlite: held by"
    ) as caught:
        session.get_entity(entity, ident, LockOptions.ForUpdate, lock_timeout=0)
    error = caught.value
    assert (error.entity, error.ident) == (entity, ident)
    assert error.lock == LockOptions.ForUpdate | LockOptions.NoWait
    assert isinstance(error.orig, sqlite3.OperationalError)
    assert error.__cause__ is error.orig


@pytest.mark.usefixtures("taken")
def test_a_failure_says_how_long_it_has_waited(session: LockingSession) -> None:
    with pytest.raises(LockNotAvailable, match=r"not granted within 0\.001 s"):
        session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.001)


def test_a_misuse_is_one_too_in_a_session_that_has_no_database() -> None:
    order, session = Order(id=1), LockingSession()
    make_transient_to_detached(order)
    session.add(order)
    order.total = 2
    with pytest.raises(UnsavedChanges, match=r"^Order 1 FOR UPDATE on its database:"):
        session.get_entity(Order, 1, LockOptions.ForUpdate)


# --------------------------------------------------------------------------------------------------
# An error about one of many objects names the session's first one, the same in every run.

MANY = 40


class Base(DeclarativeBase):
    pass


@document(parts=("lines",))
class Bill(Base):
    __tablename__ = "bill"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(order_by="Line.id")


class Line(Base):
    __tablename__ = "line"
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int]
    bill_id: Mapped[int] = mapped_column(ForeignKey("bill.id"))


def change_lines(session: Session) -> Bill:
    """Change the lines, last to first; Line 1 was loaded first."""
    bill = session.get_one(Bill, 1)
    for line in reversed(bill.lines):
        line.value += 1
    return bill


def flush(session: LockingSession) -> None:
    change_lines(session)
    session.flush()


def lock(session: LockingSession) -> None:
    change_lines(session).total += 1
    session.get_entity(Bill, 1, LockOptions.ForUpdate)


def lock_by_program(session: LockingSession) -> None:
    session.autoflush = False
    change_lines(session)
    session.connection().exec_driver_sql("UPDATE line SET value = 100")  # as another session would
    session.scalars(sa.select(Bill).with_for_update()).all()


@rows(
    "step, named",
    [
        (flush, "^Bill 1 on sqlite: Line 1 would be changed"),
        (lock, "^Bill 1 FOR UPDATE on sqlite: it has pending changes"),
        (lock_by_program, "'value' of Line 1 "),
    ],
)
def test_it_names_the_first(
    tmp_path: Path, step: Callable[[LockingSession], None], named: str
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/{step.__name__}.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Bill(id=1, total=0, lines=[Line(value=0) for _ in range(MANY)]))
        session.commit()
    with LockingSession(engine) as locking, pytest.raises(DocLockError, match=named):
        step(locking)
    engine.dispose()
