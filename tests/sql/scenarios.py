"""The actions of sessions; golden/sent/ records the statements that each database receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Engine, Select, delete, literal, literal_column, select, update
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocLockError, LockingSession, LockOptions, claim_each, with_lock
from tests.sql.driver import MISSING, Script
from tests.sql.models import (
    Box,
    Customer,
    Delivery,
    Fault,
    Invoice,
    Item,
    Journal,
    Lease,
    Line,
    Order,
    Voucher,
)

Act = Callable[[LockingSession], object]

NO_WAIT, SKIP_LOCKED = LockOptions.NoWait, LockOptions.SkipLocked
FOR_UPDATE, SHARED, SNAPSHOT = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)


def sent_by(act: Act, engine: Engine, script: Script) -> list[str]:
    """Run an action in a session and close it; return the statements sent to its database, and the error."""
    with LockingSession(engine) as session:
        try:
            act(session)
        except DocLockError as error:
            script.sent.append(f"-- raises {type(error).__name__}")
    return list(script.sent)


def _takes(
    lock: LockOptions,
    lock_timeout: float | None = None,
    entity: type[Any] = Order,
    ident: object = 1,
) -> Act:
    def act(session: LockingSession) -> None:
        session.get_entity(entity, ident, lock, lock_timeout=lock_timeout)
        session.release_locks()

    return act


def _change_an_order(session: LockingSession) -> None:
    with session.locked(Order, 1) as order:
        order.total = sum(line.value for line in order.lines) + 6


def _change_a_lease(session: LockingSession) -> None:
    with session.locked(Lease, 1, lock_timeout=0.3) as lease:
        lease.total, lease.rent = 7, 8


def _leave_by_an_exception(session: LockingSession) -> None:
    try:
        with session.locked(Order, 1) as order:
            order.total = 7
            session.flush()
            assert order.total == 30
    except AssertionError:
        pass


def _look_for_a_missing_row(session: LockingSession) -> None:
    assert session.get_entity(Order, MISSING, FOR_UPDATE) is None
    session.release_locks()


def _create_a_missing_row(session: LockingSession) -> None:
    # The scripted server no longer finds it when the session reads it again.
    session.get_or_create_entity(
        Order, MISSING, defaults={"customer_id": 1, "total": 0}, lock_timeout=2
    )


def _create_a_missing_row_by_a_unique_key(session: LockingSession) -> None:
    key = {"severity": MISSING}
    session.get_or_create_entity(Fault, key, defaults={"id": MISSING, "total": 0}, lock_timeout=2)


def _lock_with_a_mapped_join(session: LockingSession) -> None:
    session.get_one_entity(Invoice, 1, FOR_UPDATE)
    session.release_locks()


def _lock_a_set(session: LockingSession, lock: LockOptions = FOR_UPDATE) -> None:
    session.scalars(session.entity_set(Order, lock).order_by(Order.id).limit(10)).all()
    session.release_locks()


def _lock_a_join(session: LockingSession) -> None:
    joined = select(Order).join(Order.lines).where(Line.value > 0)
    session.scalars(with_lock(joined, FOR_UPDATE)).unique().all()
    session.release_locks()


def _waits_for_a_set(entity: type[Any], narrowed: Callable[[Any], Any]) -> Act:
    def act(session: LockingSession) -> None:
        locked = session.entity_set(entity, FOR_UPDATE, lock_timeout=0.3)
        session.scalars(narrowed(locked)).unique().all()
        session.release_locks()

    return act


def _lock_a_set_of_leases(session: LockingSession) -> None:
    session.scalars(session.entity_set(Lease, FOR_UPDATE)).all()
    session.release_locks()


def _lock_after_a_plain_read(lock: LockOptions) -> Act:
    def act(session: LockingSession) -> None:
        session.get(Customer, 1)
        session.get_entity(Order, 1, lock)

    return act


def _lock_in_a_savepoint(session: LockingSession) -> None:
    session.get_entity(Order, 1, FOR_UPDATE)
    with session.begin_nested():
        session.get_entity(Invoice, 1, FOR_UPDATE)
    session.save_changes()


def _begin_with_a_savepoint(session: LockingSession) -> None:
    with session.begin(), session.begin_nested():
        session.get_entity(Order, 1, FOR_UPDATE)


def _lock_the_same_twice(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, FOR_UPDATE)
    assert session.get_entity(Order, 1, FOR_UPDATE | NO_WAIT) is order
    assert session.get_entity(Order, 1, SHARED) is order
    session.release_locks()


def _lock_many(
    entity: type[Any], keys: list[Any], lock: LockOptions, lock_timeout: float | None = None
) -> Act:
    def act(session: LockingSession) -> None:
        session.get_entities(entity, keys, lock, lock_timeout=lock_timeout)
        session.release_locks()

    return act


def _read_a_document(lock: LockOptions) -> Act:
    def act(session: LockingSession) -> None:
        session.get_document(Delivery, 1, lock)
        session.release_locks()

    return act


def _read_documents(lock: LockOptions) -> Act:
    def act(session: LockingSession) -> None:
        session.get_documents(Delivery, [2, 1], lock)
        session.release_locks()

    return act


def _writes_by(*statements: Any) -> Act:
    """Write while the session holds only the document in question; the guard asks before each statement."""

    def act(session: LockingSession) -> None:
        session.get_entity(Delivery, 1, FOR_UPDATE)
        for statement in statements:
            session.execute(statement)
        session.release_locks()

    return act


def _write_without_a_lock(session: LockingSession) -> None:
    session.execute(delete(Box).where(Box.id > 5))


def _write_two_levels_down(session: LockingSession) -> None:
    session.get_entity(Delivery, 1, FOR_UPDATE)
    session.get_one(Item, 1).name = "b"
    session.save_changes()


def _claims(batch: int, **options: Any) -> Act:
    def act(session: LockingSession) -> None:
        factory = sessionmaker(session.get_bind(), class_=LockingSession)
        wanted = select(Order).where(Order.total > 0)
        for claim in claim_each(factory, wanted, limit=1, batch=batch, **options):
            with claim as order:
                order.total = 7

    return act


def _work_as_a_batch(session: LockingSession) -> None:
    with LockingSession(session.get_bind(), priority="batch") as batch:
        batch.get_entity(Order, 1, FOR_UPDATE)


def _lock_the_others_too(session: LockingSession) -> None:
    first = session.get_one_entity(Order, 1, FOR_UPDATE)
    assert first in session.get_entities(Order, [2, 1], FOR_UPDATE)
    session.release_locks()


def _lock_many_after_a_plain_read(session: LockingSession) -> None:
    session.get(Customer, 1)
    session.get_entities(Order, [2, 1], SHARED)


def _takes_a_key(lock_timeout: float | None = None, *, shared: bool = False) -> Act:
    def act(session: LockingSession) -> None:
        session.lock_key("user:42", lock_timeout=lock_timeout, shared=shared)
        session.release_locks()

    return act


def _take_two_keys_twice(session: LockingSession) -> None:
    for key in ("user:42", "Zoë's own", "user:42", "Zoë's own"):
        session.lock_key(key)
    session.save_changes()


def _take_a_key_after_a_plain_read(session: LockingSession) -> None:
    session.get(Customer, 1)
    session.lock_key("user:42")


def _lock_under_a_key(session: LockingSession) -> None:
    session.lock_key("user:42")
    with session.locked(Order, 1) as order:
        order.total = 6
    session.save_changes()


def _locks_by_for_update(**how: Any) -> Act:
    def act(session: LockingSession) -> None:
        session.scalars(select(Order).where(Order.id == 1).with_for_update(**how)).all()
        session.rollback()

    return act


_ORDERS: Any = Order.__table__
_LINES: Any = Line.__table__
_ALIAS = _ORDERS.alias("o")


def _locks_tables(statement: Select[Any], **how: Any) -> Act:
    def act(session: LockingSession) -> None:
        session.execute(statement.with_for_update(**how)).all()
        session.rollback()

    return act


SCENARIOS: Mapping[str, Act] = {
    "get_entity ForUpdate": _takes(FOR_UPDATE),
    "get_entity ForUpdate|NoWait": _takes(FOR_UPDATE | NO_WAIT),
    "get_entity ForUpdate, lock_timeout 0.3": _takes(FOR_UPDATE, 0.3),
    "get_entity ForUpdate, composite key, lock_timeout 0.3": _takes(
        FOR_UPDATE, 0.3, Voucher, (1, 1)
    ),
    "get_entity ForUpdate, schema and quoted names": _takes(FOR_UPDATE, None, Journal),
    "get_entity ForUpdate|NoWait, joined inheritance": _takes(FOR_UPDATE | NO_WAIT, None, Lease),
    "get_entity SharedRead": _takes(SHARED),
    "get_entity SharedRead, joined inheritance": _takes(SHARED, None, Lease),
    "get_entity SharedRead|NoWait": _takes(SHARED | NO_WAIT),
    "get_entity SharedRead, lock_timeout 0.3": _takes(SHARED, 0.3),
    "get_entity SnapshotRead": _takes(SNAPSHOT),
    "get_entity NoLock": _takes(LockOptions.NoLock),
    "get_entity ForUpdate of a missing row": _look_for_a_missing_row,
    "get_or_create_entity of a missing row": _create_a_missing_row,
    "get_or_create_entity of a missing row, by a unique key": _create_a_missing_row_by_a_unique_key,
    "get_entity ForUpdate of the same twice": _lock_the_same_twice,
    "get_entity ForUpdate, mapped lazy='joined'": _lock_with_a_mapped_join,
    "locked, changes": _change_an_order,
    "locked, changes to joined inheritance, lock_timeout 0.3": _change_a_lease,
    "locked, left by an exception": _leave_by_an_exception,
    "entity_set ForUpdate, limit 10": _lock_a_set,
    "entity_set ForUpdate|SkipLocked, limit 10": lambda session: _lock_a_set(
        session, FOR_UPDATE | SKIP_LOCKED
    ),
    "entity_set SharedRead|SkipLocked, limit 10": lambda session: _lock_a_set(
        session, SHARED | SKIP_LOCKED
    ),
    "entity_set ForUpdate, joined inheritance": _lock_a_set_of_leases,
    "entity_set ForUpdate, no parameters, lock_timeout 0.3": _waits_for_a_set(
        Order, lambda locked: locked
    ),
    "entity_set ForUpdate, a join, lock_timeout 0.3": _waits_for_a_set(
        Order, lambda locked: locked.join(Order.lines).where(Line.value > 0)
    ),
    "entity_set ForUpdate, names and texts in quotes, lock_timeout 0.3": _waits_for_a_set(
        Journal, lambda locked: locked.where(Journal.name == literal_column("'it''s'"))
    ),
    "with_lock ForUpdate, a join": _lock_a_join,
    "after a plain read, ForUpdate": _lock_after_a_plain_read(FOR_UPDATE),
    "after a plain read, SharedRead": _lock_after_a_plain_read(SHARED),
    "after a plain read, SharedRead|NoWait": _lock_after_a_plain_read(SHARED | NO_WAIT),
    "after a plain read, SnapshotRead": _lock_after_a_plain_read(SNAPSHOT),
    "ForUpdate, then another in a savepoint": _lock_in_a_savepoint,
    "begin, savepoint, ForUpdate": _begin_with_a_savepoint,
    "get_entities ForUpdate": _lock_many(Order, [2, 1], FOR_UPDATE),
    "get_entities ForUpdate, lock_timeout 0.3": _lock_many(Order, [2, 1], FOR_UPDATE, 0.3),
    "get_entities ForUpdate|SkipLocked": _lock_many(Order, [2, 1], FOR_UPDATE | SKIP_LOCKED),
    "get_entities SharedRead": _lock_many(Order, [2, 1], SHARED),
    "get_entities NoLock": _lock_many(Order, [2, 1], LockOptions.NoLock),
    "get_entities ForUpdate, composite key": _lock_many(Voucher, [(2, 1), (1, 1)], FOR_UPDATE),
    "get_entities ForUpdate, joined inheritance": _lock_many(Lease, [2, 1], FOR_UPDATE),
    "get_entities ForUpdate, one is held already": _lock_the_others_too,
    "after a plain read, get_entities SharedRead": _lock_many_after_a_plain_read,
    "get_document ForUpdate": _read_a_document(FOR_UPDATE),
    "get_document SnapshotRead": _read_a_document(SNAPSHOT),
    "get_document NoLock": _read_a_document(LockOptions.NoLock),
    "get_documents ForUpdate": _read_documents(FOR_UPDATE),
    "get_documents SnapshotRead": _read_documents(SNAPSHOT),
    "guard, UPDATE of headers": _writes_by(update(Delivery).values(total=7)),
    "guard, UPDATE and DELETE of parts": _writes_by(
        update(Box).where(Box.id > 0).values(delivery_id=1), delete(Box).where(Box.delivery_id == 1)
    ),
    "guard, UPDATE and DELETE of parts of parts": _writes_by(
        update(Item).where(Item.box_id == 1).values(name="b"), delete(Item)
    ),
    "guard, DELETE without a lock": _write_without_a_lock,
    "guard, a part of a part that is changed": _write_two_levels_down,
    "lock_key": _takes_a_key(),
    "lock_key shared": _takes_a_key(shared=True),
    "lock_key, lock_timeout 0": _takes_a_key(0),
    "lock_key shared, lock_timeout 0": _takes_a_key(0, shared=True),
    "lock_key, lock_timeout 0.3": _takes_a_key(0.3),
    "lock_key, lock_timeout 5": _takes_a_key(5),
    "lock_key of two, twice": _take_two_keys_twice,
    "lock_key, then locked": _lock_under_a_key,
    "after a plain read, lock_key": _take_a_key_after_a_plain_read,
    "claim_each": _claims(1),
    "claim_each in batches": _claims(2),
    "batch session, ForUpdate": _work_as_a_batch,
    "with_for_update() of the program": _locks_by_for_update(),
    "with_for_update(nowait=True) of the program": _locks_by_for_update(nowait=True),
    "with_for_update(skip_locked=True) of the program": _locks_by_for_update(skip_locked=True),
    "with_for_update(read=True) of the program": _locks_by_for_update(read=True),
    "with_for_update(key_share=True) of the program": _locks_by_for_update(key_share=True),
    "with_for_update(read=True, key_share=True) of the program": _locks_by_for_update(
        read=True, key_share=True
    ),
    "with_for_update() of a table": _locks_tables(select(_ORDERS).where(_ORDERS.c.id == 1)),
    "with_for_update() of an alias, a join": _locks_tables(
        select(_ALIAS.c.id).join(_LINES, _LINES.c.order_id == _ALIAS.c.id)
    ),
    "with_for_update(of=) of a join of tables": _locks_tables(
        select(_ORDERS.c.id).join(_LINES, _LINES.c.order_id == _ORDERS.c.id), of=_ORDERS
    ),
    "with_for_update() of a literal": _locks_tables(select(literal(1)).select_from(Order)),
    "get(with_for_update=True) of the program": lambda s: s.get(Order, 1, with_for_update=True),
}
