"""get_entities: each document once, in ascending key order; missing documents are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, PendingRollbackError
from sqlalchemy.orm import joinedload, selectinload

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions
from tests.integration.locking.expectations import KINDS, Kind
from tests.integration.locking.steps import finds_held, recorded, seen
from tests.support.databases import Database
from tests.support.models import Contract, Customer, Fault, Lease, Order, Ticket, Voucher
from tests.support.rows import rows

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
PLAIN = (LockOptions.None_, LockOptions.NoLock)
LOCKS = (ForUpdate, SharedRead, LockOptions.SnapshotRead)
ALL = (*PLAIN, *LOCKS)
Session = LockingSession


def idents(found: list[Any]) -> list[Any]:
    return [sa.inspect(one).identity for one in found]


@pytest.mark.read_committed
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_they_come_in_ascending_order_of_their_keys(session: Session, kind: Kind) -> None:
    entity = Contract if kind.entity is Lease else Ticket if kind.entity is Fault else kind.entity
    expected = [kind.ident, kind.other_ident]
    expected = [one if isinstance(one, tuple) else (one,) for one in expected]
    for lock in ALL:
        found = session.get_entities(entity, [kind.other_ident, kind.ident], lock)
        assert idents(found) == expected, lock
        assert [one.total for one in found] == [30, 5], lock
        assert list(session.held_locks) == (
            [] if lock in PLAIN else [(entity, i) for i in expected]
        )
        session.rollback()


@pytest.mark.read_committed
def test_every_one_of_them_is_locked(session: Session, other: Session) -> None:
    for entity, keys in ((Order, [2, 1]), (Contract, [2, 1]), (Voucher, [(2024, 2), (2024, 1)])):
        session.get_entities(entity, keys, ForUpdate)
        for key in keys:
            assert finds_held(entity, key)(other), (entity, key)
        session.rollback()


@pytest.mark.read_committed
def test_each_comes_once(session: Session) -> None:
    for lock in ALL:
        assert idents(session.get_entities(Order, [2, 1, 2, (1,), {"id": 2}], lock)) == [(1,), (2,)]
        session.rollback()


@pytest.mark.read_committed
def test_many_come_in_order(session: Session, twenty: range) -> None:
    keys = sorted(twenty, key=lambda key: key * 7 % 20)
    for lock in ALL:
        assert [one.id for one in session.get_entities(Order, keys, lock)] == list(twenty)
        session.rollback()


@pytest.mark.read_committed
def test_composite_keys_are_ordered_by_their_first_column_first(
    session: Session, twenty: range
) -> None:
    keys = [(2025, 3), (2024, 2), (2025, twenty[-1]), (2024, 1)]
    for lock in ALL:
        found = session.get_entities(Voucher, keys, lock)
        assert idents(found) == [(2024, 1), (2024, 2), (2025, 3), (2025, 20)], lock
        session.rollback()


@pytest.mark.read_committed
def test_those_that_there_are_not_are_left_out(session: Session) -> None:
    for lock in ALL:
        assert idents(session.get_entities(Order, [99, 2, 0, 1], lock)) == [(1,), (2,)]
        assert (Order, (99,)) not in session.held_locks
        session.rollback()
        assert session.get_entities(Order, [98, 99], lock) == []
        assert not session.held_locks
        session.rollback()


@pytest.mark.read_committed
def test_those_of_another_class_are_left_out(session: Session) -> None:
    for entity in (Lease, Fault):
        for lock in ALL:
            found = session.get_entities(entity, [2, 1], lock)
            assert idents(found) == [(1,)], (entity, lock)
            session.rollback()


@pytest.mark.read_committed
def test_of_no_keys_nothing_is_asked(engine: sa.Engine, session: Session) -> None:
    with recorded(engine) as statements:
        for lock in ALL:
            assert session.get_entities(Order, [], lock) == []
            assert session.get_entities(Order, iter(()), lock) == []
    assert statements == []
    assert not session.in_transaction()


@pytest.mark.read_committed
def test_any_collection_of_keys_will_do(session: Session) -> None:
    for keys in ((key for key in (2, 1)), {2, 1}, (2, 1), {2: "b", 1: "a"}.keys()):
        assert idents(session.get_entities(Order, keys, ForUpdate)) == [(1,), (2,)]
        session.rollback()


@pytest.mark.read_committed
def test_a_key_may_be_given_in_every_way_that_get_entity_knows(session: Session) -> None:
    keys: list[Any] = [{"number": 2, "year": 2024}, [2024, 1], (2024, 2)]
    found = session.get_entities(Voucher, keys, ForUpdate)
    assert idents(found) == [(2024, 1), (2024, 2)]
    session.rollback()
    rows = session.execute(sa.select(Voucher.year, Voucher.number)).all()
    assert idents(session.get_entities(Voucher, rows, ForUpdate)) == [(2024, 1), (2024, 2)]


@pytest.mark.read_committed
def test_no_lock_is_no_lock(session: Session, other: Session) -> None:
    for lock in PLAIN:
        session.get_entities(Order, [1, 2], lock)
        assert not finds_held(Order, 1)(other)


@pytest.mark.read_committed
def test_a_plain_read_gives_the_objects_that_the_session_knows(session: Session) -> None:
    known = session.get_one(Order, 2)
    known.total = 6
    with session.no_autoflush:
        found = session.get_entities(Order, [2, 1])
    assert found[1] is known
    assert known.total == 6


@pytest.mark.read_committed
def test_options_are_honoured(engine: sa.Engine, session: Session) -> None:
    for lock in ALL:
        found = session.get_entities(Order, [2, 1], lock, options=[selectinload(Order.lines)])
        with recorded(engine) as statements:
            assert list(map(seen, found)) == [(30, [10, 20]), (5, [5])], lock
        assert statements == []
        session.close()


@pytest.mark.read_committed
def test_options_are_honoured_for_those_that_are_held(engine: sa.Engine, session: Session) -> None:
    kept = session.get_entities(Order, [2], ForUpdate)
    found = session.get_entities(Order, [2, 1], ForUpdate, options=[selectinload(Order.lines)])
    assert found[1] is kept[0]
    with recorded(engine) as statements:
        assert list(map(seen, found)) == [(30, [10, 20]), (5, [5])]
    assert statements == []


@pytest.mark.read_committed
def test_one_statement_locks_them_all(engine: sa.Engine, session: Session, twenty: range) -> None:
    session.get_entities(Order, [1], ForUpdate)  # queries once how the table is stored
    session.rollback()
    with recorded(engine) as statements:
        session.get_entities(Order, twenty, ForUpdate)
    assert len([text for text in statements if text.startswith("SELECT")]) == 1


# --------------------------------------------------------------------------------------------------
# get_entities() rejects wrong arguments before anything is sent.

LOCKS_BAD_INPUT = (LockOptions.None_, LockOptions.NoLock, LockOptions.SharedRead, ForUpdate)
Call = Callable[[LockingSession, LockOptions], Any]

CALLS: dict[str, tuple[Call, type[Exception], str]] = {
    "a string": (lambda s, k: s.get_entities(Order, "12", k), TypeError, "'12'"),
    "bytes": (lambda s, k: s.get_entities(Order, b"12", k), TypeError, "b'12'"),
    "a scalar": (lambda s, k: s.get_entities(Order, 1, k), TypeError, "not 1$"),  # type: ignore[arg-type]
    "None": (lambda s, k: s.get_entities(Order, None, k), TypeError, "not None"),  # type: ignore[arg-type]
    "a dict": (lambda s, k: s.get_entities(Order, {"id": 1}, k), TypeError, "'id': 1"),
    "a key of None": (lambda s, k: s.get_entities(Order, [1, None], k), ValueError, "NULL"),
    "too many values": (
        lambda s, k: s.get_entities(Order, [1, (1, 2)], k),
        ValueError,
        r"\(1, 2\)",
    ),
    "too few values": (lambda s, k: s.get_entities(Voucher, [(2024,)], k), ValueError, r"2024,\)"),
    "one composite key": (
        lambda s, k: s.get_entities(Voucher, (2024, 1), k),
        ValueError,
        r"\(year, number\), not 2024",
    ),
    "a wrong name": (lambda s, k: s.get_entities(Order, [{"nr": 1}], k), ValueError, "'nr'"),
    "no number": (
        lambda s, k: s.get_entities(Order, [1, "b"], k),
        ValueError,
        "'b' is not a number",
    ),
    "a part that is None": (
        lambda s, k: s.get_entities(Voucher, [(2024, None), (2024, 1)], k),
        ValueError,
        "order",
    ),
    "no mapped class": (lambda s, k: s.get_entities(int, [1], k), TypeError, "mapped class"),
    "options": (lambda s, k: s.get_entities(Order, [1], k, options=["x"]), TypeError, "option"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_it_is_refused_before_anything_is_sent(
    engine: sa.Engine, session: LockingSession, case: tuple[Call, type[Exception], str]
) -> None:
    call, error, text = case
    for lock in LOCKS_BAD_INPUT:
        with recorded(engine) as statements, pytest.raises(error, match=text):
            call(session, lock)
        assert statements == []
        assert not session.in_transaction()
        assert not session.held_locks


@rows(
    "lock, how, text",
    [
        (ForUpdate | LockOptions.SharedRead, {}, "SharedRead and LockOptions.ForUpdate"),
        (ForUpdate | LockOptions.NoWait | LockOptions.SkipLocked, {}, "NoWait"),
        (LockOptions.SkipLocked, {}, "SkipLocked"),
        (ForUpdate | LockOptions.NoWait, {"lock_timeout": 1}, "NoWait"),
        (ForUpdate | LockOptions.SkipLocked, {"lock_timeout": 0}, "SkipLocked"),
        (LockOptions.None_, {"lock_timeout": 1}, "never waits"),
        (LockOptions.SnapshotRead, {"lock_timeout": 1}, "never waits"),
        (ForUpdate, {"lock_timeout": -1}, "zero or more"),
    ],
)
def test_what_contradicts_itself_is_refused(
    session: LockingSession, lock: LockOptions, how: dict[str, Any], text: str
) -> None:
    for keys in ([1, 2], []):
        with pytest.raises(ValueError, match=text):
            session.get_entities(Order, keys, lock, **how)
    assert not session.in_transaction()


def test_a_join_that_would_be_locked_along_is_refused(
    engine: sa.Engine, session: LockingSession
) -> None:
    joined = [joinedload(Order.lines)]
    with recorded(engine) as statements, pytest.raises(LockNotSupported, match="joinedload"):
        session.get_entities(Order, [1, 2], ForUpdate, options=joined)
    assert statements == []
    assert len(session.get_entities(Order, [1, 2], options=joined)) == 2  # allowed for a plain read


# --------------------------------------------------------------------------------------------------
# A failed get_entities() rolls back a transaction that it opened; otherwise the session refuses.

NoWait = LockOptions.NoWait


def test_what_it_has_opened_is_rolled_back(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entities(Order, [1, 2], ForUpdate | NoWait)
    assert not session.in_transaction()
    other.rollback()
    assert not finds_held(Order, 1)(other)
    assert len(session.get_entities(Order, [1, 2], ForUpdate | NoWait)) == 2


@pytest.mark.not_databases("sqlite")  # the holder of a document holds the file
@pytest.mark.read_committed
def test_a_callers_transaction_does_nothing_more(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    session.begin()
    session.get_one(Customer, 1)
    with pytest.raises(LockNotAvailable) as caught:
        session.get_entities(Order, [1, 2], ForUpdate | NoWait)
    assert isinstance(caught.value, OperationalError)
    for act in (
        lambda: session.get_entities(Order, [1], ForUpdate),
        lambda: session.get_entities(Order, [1]),
        session.commit,
    ):
        with pytest.raises(PendingRollbackError):
            act()
    session.rollback()
    assert not session.held_locks
    assert not finds_held(Order, 1)(other)
    assert [order.id for order in session.get_entities(Order, [1], ForUpdate)] == [1]


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
def test_the_rollback_of_a_savepoint_saves_the_rest(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    with session.begin():
        session.get_one(Customer, 1).name = "Anna"
        session.flush()
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entities(Order, [1, 2], ForUpdate | NoWait)
        assert not session.held_locks
    assert session.get_one(Customer, 1).name == "Anna"


def test_autocommit_is_refused(documents: Database) -> None:
    engine = documents.engine(isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        with pytest.raises(LockNotSupported, match=r"^Order rows FOR UPDATE on .*AUTOCOMMIT"):
            session.get_entities(Order, [1, 2], ForUpdate)
        assert not session.in_transaction()
        assert len(session.get_entities(Order, [1, 2])) == 2
