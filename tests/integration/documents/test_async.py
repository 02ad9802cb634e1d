"""AsyncLockingSession.get_document(): every part is there, nothing has to be awaited after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import AsyncLockingSession, LockOptions
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.integration.documents.hierarchies import Contract
from tests.integration.documents.loading import Basket, Bill, Folder
from tests.integration.documents.models import Category, Job, Journal, Line, Order, Tax
from tests.integration.documents.relationships import Album
from tests.integration.documents.whole import whole
from tests.support.databases import Database

pytestmark = [pytest.mark.quick, pytest.mark.databases("sqlite", "postgresql")]

ForUpdate = LockOptions.ForUpdate
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


@in_a_loop
async def test_get_entity_leaves_the_parts_to_be_awaited(url: sa.URL) -> None:
    async with connected(url) as engine, opened(engine) as session:
        order = await session.get_entity(Order, 1, ForUpdate)
        assert "lines" not in sa.inspect(order).dict


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
