"""Header and parts are consistent, whatever others write in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockOptions,
    UnlockedWrite,
    UnsavedChanges,
)
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.integration.documents.hierarchies import Album, Contract, Tag
from tests.integration.documents.loading import Basket, Bill, Folder
from tests.integration.documents.models import (
    Category,
    Entry,
    Job,
    Journal,
    Line,
    Order,
    Split,
    Task,
    Tax,
)
from tests.integration.documents.rows import whole
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Actors = Actor[LockingSession]
FIRST = (30, [(10, [4, 6]), (20, [20])])


def lock_order(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)


def rewrite_details(session: LockingSession) -> None:
    """Change parts of order 1 at both levels, but not the header."""
    order = session.get_one_entity(Order, 1, ForUpdate)
    first, second = order.lines
    first.value, second.value = 15, 15
    second.taxes[0].value = 15
    first.taxes.append(Tax(id=9, value=5))
    session.save_changes()


def add_ten(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total += 10
    order.lines.append(Line(id=9, value=10, taxes=[Tax(id=9, value=10)]))
    session.save_changes()


AFTER: dict[Callable[[LockingSession], None], Any] = {
    rewrite_details: (30, [(15, [5, 4, 6]), (15, [15])]),
    add_ten: (40, [(10, [4, 6]), (20, [20]), (10, [10])]),
}


def knows(session: LockingSession) -> list[Any]:
    order = session.get_one(Order, 1)
    assert whole(order) == FIRST
    session.commit()
    return [order, *order.lines, *(tax for line in order.lines for tax in line.taxes)]


READS: dict[str, Callable[[LockingSession], Any]] = {
    "get_document": lambda s: whole(s.get_document(Order, 1, ForUpdate)),
    "get_documents": lambda s: whole(s.get_documents(Order, [1, 2], ForUpdate)[0]),
    "get_entity": lambda s: whole(s.get_entity(Order, 1, ForUpdate)),
    "get_entities": lambda s: whole(s.get_entities(Order, [1, 2], ForUpdate)[0]),
    "a set": lambda s: whole(s.scalars(s.entity_set(Order, ForUpdate).where(Order.id == 1)).one()),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", AFTER)
@pytest.mark.parametrize("acquainted", [False, True])
def test_after_a_wait_the_parts_are_those_of_now(
    alice: Actors,
    bob: Actors,
    read: str,
    write: Callable[[LockingSession], None],
    *,
    acquainted: bool,
) -> None:
    known = bob.does(knows) if acquainted else []
    alice.does(lock_order)
    queued = bob.starts(READS[read])
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(write)
    assert queued.result() == AFTER[write]
    assert len(known) == (6 if acquainted else 0)


@pytest.mark.not_databases("sqlite", "mssql")  # there SharedRead is a snapshot
@pytest.mark.parametrize("write", AFTER)
def test_a_shared_read_waits_too(
    alice: Actors, bob: Actors, write: Callable[[LockingSession], None]
) -> None:
    known = bob.does(knows)
    alice.does(lock_order)
    queued = bob.starts(lambda s: whole(s.get_document(Order, 1, SharedRead)))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(write)
    assert queued.result() == AFTER[write]
    assert known


@pytest.mark.not_databases("sqlite-journal")  # there a reader blocks the writer
@pytest.mark.parametrize("write", AFTER)
def test_a_snapshot_shows_parts_as_old_as_the_header(
    alice: Actors, bob: Actors, write: Callable[[LockingSession], None]
) -> None:
    known = bob.does(knows)
    header = bob.does(lambda s: s.get_entity(Order, 1, LockOptions.SnapshotRead))
    alice.does(write)
    assert bob.does(lambda s: whole(s.get_document(Order, 1, LockOptions.SnapshotRead))) == FIRST
    bob.does(lambda s: s.rollback())
    assert bob.does(lambda s: whole(s.get_document(Order, 1, SharedRead))) == AFTER[write]
    assert known
    assert header


@pytest.mark.databases("postgresql")
def test_the_trap_one_statement_for_both_shows_old_parts(
    engine: sa.Engine, alice: Actors, bob: Actors
) -> None:
    """The library avoids this: a locking SELECT with a join shows lines from before its wait."""

    def joins(_: LockingSession) -> list[int]:
        with Session(engine) as plain:
            statement = sa.select(Order, Line).join(Order.lines).where(Order.id == 1)
            rows = plain.execute(statement.order_by(Line.id).with_for_update(of=Order)).all()
            return [line.value for _, line in rows]

    alice.does(lock_order)
    queued = bob.starts(joins)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(rewrite_details)
    assert queued.result() == [10, 20]


def test_nobody_changes_parts_while_the_document_is_held(alice: Actors, bob: Actors) -> None:
    held = alice.does(lambda s: s.get_document(Order, 1, ForUpdate))
    queued = bob.starts(rewrite_details)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    again = alice.does(lambda s: whole(s.get_document(Order, 1, ForUpdate)))
    assert again == FIRST
    alice.does(lambda s: s.commit())
    queued.result()
    assert held


# --------------------------------------------------------------------------------------------------
# Pending changes on parts at any depth: reported before the lock, or under it if it must ask.

LOCKS: dict[str, Callable[[LockingSession, Any, Any], Any]] = {
    "ForUpdate": lambda s, entity, ident: s.get_entity(entity, ident, ForUpdate),
    "SharedRead": lambda s, entity, ident: s.get_entity(entity, ident, SharedRead),
    "get_document": lambda s, entity, ident: s.get_document(entity, ident, ForUpdate),
    "get_entities": lambda s, entity, ident: s.get_entities(entity, [ident], ForUpdate),
    "a set": lambda s, entity, _: s.scalars(s.entity_set(entity, ForUpdate)).all(),
}


def known(session: LockingSession, entity: type[Any], ident: Any) -> Any:
    """Read a row in a transaction that ends: InnoDB's default level protects no document."""
    thing = session.get_one(entity, ident)
    session.commit()
    return thing


def changed(session: LockingSession, entity: type[Any], ident: Any) -> Any:
    thing = known(session, entity, ident)
    thing.value += 1
    return thing


def removed(session: LockingSession, entity: type[Any], ident: Any) -> Any:
    thing = known(session, entity, ident)
    session.delete(thing)
    return thing


def added(session: LockingSession, thing: Any) -> Any:
    session.add(thing)
    return thing


def moved(session: LockingSession, entity: type[Any], ident: Any, **values: object) -> Any:
    thing = known(session, entity, ident)
    for name, value in values.items():
        setattr(thing, name, value)
    return thing


#: A pending change of a document, made through a row whose owner may not be in the session.
PENDING: dict[str, tuple[type[Any], Any, Callable[[LockingSession], Any]]] = {
    "line changed": (Order, 1, lambda s: changed(s, Line, 1)),
    "tax changed": (Order, 1, lambda s: changed(s, Tax, 1)),
    "tax deleted": (Order, 1, lambda s: removed(s, Tax, 1)),
    "tax added": (Order, 1, lambda s: added(s, Tax(id=9, line_id=2, value=1))),
    "line added": (Order, 1, lambda s: added(s, Line(id=9, order_id=1, value=1))),
    "line comes": (Order, 1, lambda s: moved(s, Line, 3, order_id=1)),
    "line goes": (Order, 1, lambda s: moved(s, Line, 1, order_id=2)),
    "tax comes": (Order, 1, lambda s: moved(s, Tax, 4, line_id=2)),
    "tax goes": (Order, 1, lambda s: moved(s, Tax, 1, line_id=3)),
    "composite": (Journal, (2024, 1), lambda s: changed(s, Split, 1)),
    "composite, one level": (Journal, (1, 2024), lambda s: changed(s, Entry, (2024, 1, 1))),
    "depth 4": (Job, 1, lambda s: changed(s, Task, 4)),
    "many-to-many": (Album, 2, lambda s: changed(s, Tag, 1)),
}


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("owners", [False, True])
def test_they_are_refused(session: LockingSession, lock: str, *, owners: bool) -> None:
    passed = []
    for name, (entity, ident, change) in PENDING.items():
        kept = everything(session) if owners else []
        session.commit()
        with session.no_autoflush:
            thing = change(session)
            try:
                LOCKS[lock](session, entity, ident)
                passed.append(name)
            except UnsavedChanges as error:
                passed += [name] * (type(thing).__name__ not in str(error))
        assert thing in session
        assert len(kept) > 30 or not owners
        session.rollback()
        session.expunge_all()
    assert passed == []


def everything(session: LockingSession) -> list[Any]:
    entities: list[type[Any]] = [Order, Line, Tax, Journal, Entry, Split, Job, Task, Album, Tag]
    return [thing for entity in entities for thing in session.scalars(sa.select(entity))]


@pytest.mark.parametrize("lock", ["ForUpdate", "SharedRead", "get_document", "get_entities"])
def test_those_of_another_document_are_left_alone(session: LockingSession, lock: str) -> None:
    others: list[tuple[type[Any], int, type[Any], Any]] = [
        (Tax, 4, Order, 1),
        (Split, 4, Journal, (2024, 1)),
        (Split, 5, Journal, (2024, 1)),
        (Task, 4, Job, 2),
        (Tag, 3, Album, 2),
    ]
    for part, number, header, ident in others:
        with session.no_autoflush:
            thing = changed(session, part, number)
            LOCKS[lock](session, header, ident)
        assert thing in session.dirty
        session.rollback()
        session.expunge_all()


def test_what_must_be_asked_is_asked_under_the_lock(
    session: LockingSession, sent: list[str]
) -> None:
    tax = changed(session, Tax, 1)
    sent.clear()
    with pytest.raises(UnsavedChanges, match="Tax in its 'taxes'"):
        session.get_entity(Order, 1, ForUpdate)
    assert len(sent) >= 2
    assert "dc_order" in sent[0].partition("WHERE")[0]
    assert tax in session.dirty
    assert not session.held_locks  # so the guard must not let the change through
    with pytest.raises(UnlockedWrite):
        session.flush()


def test_what_needs_no_answer_is_reported_before_anything_is_sent(
    session: LockingSession, sent: list[str]
) -> None:
    line = known(session, Line, 1)
    tax = changed(session, Tax, 1)
    sent.clear()
    with pytest.raises(UnsavedChanges, match="Order 1"):
        session.get_entity(Order, 1, ForUpdate)
    assert sent == []
    assert line
    assert tax


def test_a_pending_tree_is_its_topmost_headers(session: LockingSession) -> None:
    category = known(session, Category, 4)
    category.total += 1
    with session.no_autoflush:
        with pytest.raises(UnsavedChanges):
            session.get_entity(Category, 4, ForUpdate)
        with pytest.raises(UnsavedChanges):
            session.get_entity(Category, 1, ForUpdate)
        session.get_entity(Category, 5, ForUpdate)
    assert category in session.dirty


# --------------------------------------------------------------------------------------------------
# AsyncLockingSession.get_document() loads every part: no attribute needs an await.

Run = Callable[..., None]
KINDS: list[tuple[type[Any], Any]] = [
    (Order, 1), (Journal, (2024, 1)), (Contract, 1), (Job, 1), (Category, 1), (Album, 1),
    (Bill, 1), (Basket, 1), (Folder, 1),
]  # fmt: skip


@pytest.fixture
def url(documents: Database) -> sa.URL:
    return url_for(documents, drivers_of(documents.column)[-1])


def opened(engine: Any) -> AsyncLockingSession:
    return AsyncLockingSession(engine, expire_on_commit=False)


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("lock", [LockOptions.None_, LockOptions.SharedRead, ForUpdate])
@in_a_loop
async def test_every_part_can_be_reached(url: sa.URL, lock: LockOptions) -> None:
    async with connected(url) as engine:
        for entity, ident in KINDS:
            async with opened(engine) as session:
                document = await session.get_document(entity, ident, lock)
                assert str(whole(document)).count("30") >= 1
            async with opened(engine) as session:
                (document,) = await session.get_documents(entity, [ident], lock)
                assert str(whole(document)).count("30") >= 1


@pytest.mark.databases("sqlite", "postgresql")
@in_a_loop
async def test_get_entity_leaves_the_parts_to_be_awaited(url: sa.URL) -> None:
    async with connected(url) as engine, opened(engine) as session:
        order = await session.get_entity(Order, 1, ForUpdate)
        assert "lines" not in sa.inspect(order).dict


@pytest.mark.databases("sqlite", "postgresql")
@in_a_loop
async def test_no_row_is_none(url: sa.URL) -> None:
    async with connected(url) as engine, opened(engine) as session:
        assert await session.get_document(Order, 99, ForUpdate) is None
        assert await session.get_documents(Order, [99], ForUpdate) == []


async def rewrite(engine: Any) -> None:
    async with engine.begin() as connection:
        await connection.execute(sa.update(Line).where(Line.id == 1).values(value=11))
        await connection.execute(sa.update(Tax).where(Tax.id == 1).values(value=7))
        await connection.execute(sa.insert(Tax).values(id=9, line_id=2, value=9))
        await connection.execute(sa.delete(Tax).where(Tax.id == 2))


@pytest.mark.databases("sqlite", "postgresql")
@in_a_loop
async def test_what_the_session_holds_is_fresh_and_can_be_reached(url: sa.URL) -> None:
    async with connected(url) as engine, opened(engine) as session:
        known = await session.get_document(Order, 1)
        assert known is not None
        kept = [(line, list(line.taxes)) for line in known.lines]
        await session.commit()
        await rewrite(engine)
        assert await session.get_document(Order, 1, ForUpdate) is known
        assert whole(known) == (30, [(11, [7]), (20, [9, 20])])
        assert kept


@pytest.mark.databases("sqlite", "postgresql")
@in_a_loop
async def test_after_the_lock_of_another_document_a_plain_one_can_be_reached(url: sa.URL) -> None:
    async with connected(url) as engine, opened(engine) as session:
        for entity in (Order, Bill, Basket, Category):
            idents = (1, 5) if entity is Category else (1, 2)
            known = await session.get_document(entity, idents[0])
            before = whole(known)
            await session.commit()
            await session.get_document(entity, idents[1], ForUpdate)
            assert await session.get_document(entity, idents[0]) is known
            assert whole(known) == before
