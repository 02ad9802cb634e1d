"""A program that uses the public API, for type checkers only; it never runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqlalchemy import ForeignKey, create_engine, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    aliased,
    mapped_column,
    relationship,
    sessionmaker,
)
from typing_extensions import assert_type

from sa_doclock import (
    AsyncLockingScopedSession,
    AsyncLockingSession,
    CheckedOut,
    CheckoutLost,
    Claim,
    DocLockError,
    LockConnection,
    LockingScopedSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    LockWait,
    StaleDocument,
    __version__,
    async_claim_each,
    async_lease_each,
    async_lock_waits,
    async_run_transaction,
    claim_each,
    document,
    lease_each,
    lock_waits,
    run_transaction,
    transactional,
    with_lock,
)


class Base(DeclarativeBase):
    pass


@document(parts=("lines",), no_key=True, version=True)
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column()
    lines: Mapped[list[Line]] = relationship()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Line(Base):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))


@document
class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)


engine = create_engine("sqlite://")
Session = sessionmaker(engine, class_=LockingSession)
AsyncSession = async_sessionmaker(
    create_async_engine("sqlite+aiosqlite://"), class_=AsyncLockingSession
)
Scoped = LockingScopedSession(Session)
AsyncScoped = AsyncLockingScopedSession(AsyncSession, scopefunc=asyncio.current_task)
FOR_UPDATE = LockOptions.ForUpdate | LockOptions.NoKey | LockOptions.NoWait
assert_type(__version__, str)
assert_type(FOR_UPDATE, LockOptions)
assert_type(Order(), Order)


def read(session: LockingSession) -> None:
    assert_type(session.get_entity(Order, 1, LockOptions.ForUpdate, version=7), Order | None)
    assert_type(session.get_one_entity(Order, (1,), lock_timeout=0.5), Order)
    assert_type(session.get_document(Order, {"id": 1}), Order | None)
    assert_type(session.get_one_document(Order, 1), Order)
    assert_type(session.get_entities(Order, [1, 2], order="given"), list[Order])
    assert_type(session.get_documents(Order, (1, 2)), list[Order])
    order = session.get_one_entity(Order, 1)
    assert_type(session.lock(order, LockOptions.SharedRead), Order)
    assert_type(session.lock_key("user:42", shared=True), None)
    assert_type(session.get_or_create_entity(Order, 1, defaults={"version": 1}), tuple[Order, bool])
    statement = with_lock(select(Order), LockOptions.ForUpdate)
    assert_type(session.scalars(statement).all(), Sequence[Order])
    some = session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=1).where(Order.id == 1)
    assert_type(session.scalars(some).all(), Sequence[Order])
    assert_type(session.scalar(session.entity_set(aliased(Order))), Order | None)
    for one, lock in session.held_locks.items():
        assert_type(lock, LockOptions)
        print(one)


def blocks(session: LockingSession, given: Order) -> None:
    with session.locked(Order, 1, LockOptions.SharedRead, version=7) as order:
        assert_type(order, Order)
    with session.locked(given, lock_timeout=1) as order:
        assert_type(order, Order)
    with session.locked_document(Order, 1) as order:
        assert_type(order, Order)
    with session.locked_document(given) as order:
        assert_type(order, Order)
    with session.locked_documents(Order, [1, 2]) as orders:
        assert_type(orders, list[Order])
    with session.locked(select(Order).where(Order.id == 1)) as order:
        assert_type(order, Order)
    with session.locked(with_lock(select(Order), FOR_UPDATE)) as order:
        assert_type(order, Order)
    with session.locked(select(aliased(Order))) as order:
        assert_type(order, Order)
    with session.locked_document(select(Order)) as order:
        assert_type(order, Order)
    with session.unguarded():
        session.on_commit(lambda: print("done"))


async def read_async(session: AsyncLockingSession, given: Order) -> None:
    assert_type(await session.get_entity(Order, 1, LockOptions.ForUpdate), Order | None)
    assert_type(await session.get_one_entity(Order, 1), Order)
    assert_type(await session.get_document(Order, 1), Order | None)
    assert_type(await session.get_one_document(Order, 1), Order)
    assert_type(await session.get_entities(Order, [1]), list[Order])
    assert_type(await session.get_documents(Order, [1]), list[Order])
    assert_type(await session.lock(given), Order)
    async with session.locked(Order, 1) as order:
        assert_type(order, Order)
    async with session.locked(given) as order:
        assert_type(order, Order)
    async with session.locked(select(Order)) as order:
        assert_type(order, Order)
    async with session.locked_document(given) as order:
        assert_type(order, Order)
    async with session.locked_document(select(Order)) as order:
        assert_type(order, Order)
    async with session.locked_documents(Order, [1]) as orders:
        assert_type(orders, list[Order])
    assert_type(await session.get_or_create_entity(Order, 1), tuple[Order, bool])
    some = session.entity_set(Order, LockOptions.ForUpdate).where(Order.id == 1)
    assert_type((await session.scalars(some)).all(), Sequence[Order])
    await session.lock_key("user:42")
    await session.save_changes()
    await session.release_locks()
    assert_type(await async_lock_waits(create_async_engine("sqlite+aiosqlite://")), list[LockWait])


def read_scoped(given: Order) -> None:
    assert_type(Scoped(), LockingSession)
    assert_type(Scoped.get_entity(Order, 1, LockOptions.ForUpdate, version=7), Order | None)
    assert_type(Scoped.get_one_document(Order, 1), Order)
    assert_type(Scoped.get_entities(Order, [1, 2], order="given"), list[Order])
    assert_type(Scoped.lock(given), Order)
    with Scoped.locked(Order, 1, LockOptions.SharedRead, version=7) as order:
        assert_type(order, Order)
    with Scoped.locked_document(given) as order:
        assert_type(order, Order)
    with Scoped.locked(select(Order)) as order, Scoped.locked_document(select(Order)) as same:
        assert_type((order, same), tuple[Order, Order])
    with Scoped.locked_documents(Order, [1, 2]) as orders, Scoped.unguarded():
        assert_type(orders, list[Order])
    assert_type(Scoped.get_or_create_entity(Order, 1), tuple[Order, bool])
    statement = Scoped.entity_set(Order, LockOptions.ForUpdate)
    assert_type(Scoped.scalars(statement).all(), Sequence[Order])
    print(Scoped.held_locks.items())
    Scoped.save_changes()
    Scoped.remove()


async def read_async_scoped(given: Order) -> None:
    assert_type(AsyncScoped(), AsyncLockingSession)
    assert_type(await AsyncScoped.get_entity(Order, 1, LockOptions.ForUpdate), Order | None)
    assert_type(await AsyncScoped.get_documents(Order, [1]), list[Order])
    assert_type(await AsyncScoped.lock(given), Order)
    async with AsyncScoped.locked(Order, 1) as order:
        assert_type(order, Order)
    async with AsyncScoped.locked_document(given) as order:
        assert_type(order, Order)
    async with AsyncScoped.locked(select(Order)) as order:
        assert_type(order, Order)
    async with AsyncScoped.locked_document(select(Order)) as order:
        assert_type(order, Order)
    async with AsyncScoped.locked_documents(Order, [1]) as orders, AsyncScoped.unguarded():
        assert_type(orders, list[Order])
    assert_type(await AsyncScoped.get_or_create_entity(Order, 1), tuple[Order, bool])
    AsyncScoped.on_commit(lambda: print("done"))
    assert_type((await AsyncScoped.scalars(AsyncScoped.entity_set(Order))).all(), Sequence[Order])
    await AsyncScoped.save_changes()
    await AsyncScoped.remove()


def work(session: LockingSession, ident: int) -> int:  # noqa: ARG001
    return ident


async def work_async(session: AsyncLockingSession) -> str:  # noqa: ARG001
    return ""


def transactions() -> None:
    assert_type(run_transaction(Session, lambda session: work(session, 1)), int)
    assert_type(
        run_transaction(Session, lambda session: work(session, 1), retry_on=ValueError), int
    )
    decorated = transactional(Session, retry_on=(ValueError, LookupError))(work)
    assert_type(decorated(1), int)
    for claim in claim_each(Session, select(Order)):
        with claim as row:
            assert_type(row, Order)
    with claim_each(Session, select(Order).order_by(Order.id), limit=3, one_per=Order.id) as claims:
        assert_type(next(claims), Claim[Order])
    for lease in lease_each(Session, select(aliased(Order)), owner="ann", note="now"):
        assert_type(lease.row, Order)
        with lease, lease.saving() as row:
            assert_type(row, Order)
    assert_type(lock_waits(engine), list[LockWait])


async def async_transactions() -> None:
    assert_type(
        await async_run_transaction(
            AsyncSession, work_async, retry_on=lambda error: bool(error.args)
        ),
        str,
    )
    async for claim in async_claim_each(AsyncSession, select(Order)):
        async with claim as row:
            assert_type(row, Order)
    async for lease in async_lease_each(AsyncSession, select(Order), owner="ann", lease=9.5):
        assert_type(lease.row, Order)
        async with lease, lease.saving() as row:
            assert_type(row, Order)


def errors(error: DocLockError, stale: StaleDocument, held: LockNotAvailable) -> None:
    assert_type(error.retryable, bool)
    assert_type(error.lock, LockOptions | None)
    assert_type(held.blockers, tuple[LockConnection, ...])
    print(f"{held.waited:.1f} s", held.attempts > 1, stale.expected, stale.found)


def check_outs(taken: CheckedOut, lost: CheckoutLost) -> None:
    assert_type(taken.checkout.owner, str)
    print(taken.checkout.until - taken.checkout.since, lost.expected + 1)
