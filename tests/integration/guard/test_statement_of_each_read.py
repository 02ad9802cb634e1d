"""UnlockedWrite names the statement that read an object, whichever way it was read."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import ChunkedIteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import Session, aliased, joinedload, selectinload

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions, UnlockedWrite
from sa_doclock.core.session import context_of
from sa_doclock.guard import refusals
from tests.integration.guard.models import Lease, Line, Memo, Note, Order
from tests.integration.guard.test_sentence_of_read import change, here, sentence_of_read
from tests.support.databases import Database

MakeSession = Callable[..., LockingSession]
Read = Callable[[LockingSession], Any]


@pytest.fixture
def make_session(make_session: MakeSession) -> MakeSession:
    """Return a maker of sessions that trace their reads."""
    return partial(make_session, guard_tracing=True)


@pytest.fixture
def session(make_session: MakeSession) -> LockingSession:
    """Make a session that traces its reads."""
    return make_session()


first_order = sa.select(Order).where(Order.id == 1)
with_lines = first_order.options(selectinload(Order.lines))
WITHOUT = "It was read without the lock by SELECT gd_"


def execute(session: LockingSession) -> Any:
    return session.execute(first_order).scalar_one()


def execute_a_row(session: LockingSession) -> Any:
    return session.execute(sa.select(Order.id, Order).where(Order.id == 1)).one()[1]


def scalars(session: LockingSession) -> Any:
    return session.scalars(first_order).one()


def scalar(session: LockingSession) -> Any:
    return session.scalar(first_order)


def stream(session: LockingSession) -> Any:
    with session.execute(first_order.execution_options(yield_per=1)) as result:
        return result.scalars().first()


def of_an_alias(session: LockingSession) -> Any:
    alias = aliased(Order, name="gd_order_alias")
    return session.scalars(sa.select(alias).where(alias.id == 1)).one()


def from_a_text(session: LockingSession) -> Any:
    text = sa.text("SELECT gd_order.id FROM gd_order WHERE gd_order.id = 1")
    return session.scalars(sa.select(Order).from_statement(text.columns(Order.id))).one()


def from_a_union(session: LockingSession) -> Any:
    both = sa.union(first_order, sa.select(Order).where(Order.id == 2))
    return session.scalars(sa.select(Order).from_statement(both)).unique().all()[0]


def in_parts(session: LockingSession) -> Any:
    (some,) = session.execute(first_order).partitions(1)
    return some[0][0]


def by_a_lambda(session: LockingSession) -> Any:
    return session.scalars(sa.lambda_stmt(lambda: sa.select(Order).where(Order.id == 1))).one()


def merged(session: LockingSession) -> Any:
    return session.merge(Order(id=1, total=7))


WAYS = (
    execute,
    execute_a_row,
    scalars,
    scalar,
    stream,
    of_an_alias,
    from_a_text,
    from_a_union,
    in_parts,
    by_a_lambda,
    merged,
)


@pytest.mark.parametrize("read", WAYS, ids=[way.__name__ for way in WAYS])
def test_a_header_is_reported(session: LockingSession, read: Read) -> None:
    change(read(session))
    assert sentence_of_read(session).startswith(
        (WITHOUT, "It was read without the lock by SELECT 1")
    )


def test_what_scalar_has_read_is_reported_as_what_execute_has(make_session: MakeSession) -> None:
    session = make_session(guard_tracing=True, expire_on_commit=False)
    lease = session.get_one_entity(Lease, 1, LockOptions.ForUpdate)
    order = session.scalar(with_lines)
    assert order is not None
    session.commit()
    change(order)
    sentence = sentence_of_read(session)
    assert sentence.startswith("It was read by SELECT gd_order.id")
    assert sentence.endswith(here(test_what_scalar_has_read_is_reported_as_what_execute_has, 3))
    session.expire(order)
    change(order.lines[0])
    assert "FROM gd_line" in sentence_of_read(session)
    assert lease


def test_a_class_between_may_have_a_scalar_of_its_own(engine: sa.Engine) -> None:
    class Doubling(Session):
        def scalar(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * Session.scalar(self, *args, **kwargs)

    class Ours(LockingSession, Doubling):
        pass

    with Ours(engine) as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Order)) == 4


def test_a_schema_that_is_translated_is_left_out(engine: sa.Engine) -> None:
    translated = engine.execution_options(schema_translate_map={None: None})
    with LockingSession(translated, guard_tracing=True) as session:
        change(session.scalars(first_order).one())
        assert "FROM gd_order WHERE gd_order.id = " in sentence_of_read(session)


class Sharded(LockingSession, ShardedSession):
    """A session of one shard."""

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(
            shards={"one": engine},
            shard_chooser=lambda *_: "one",
            identity_chooser=lambda *_, **__: ["one"],
            execute_chooser=lambda _: ["one"],
            guard_tracing=True,
        )


def test_a_sharded_session_is_reported_and_knows_its_inserts(engine: sa.Engine) -> None:
    with Sharded(engine) as session:
        change(session.execute(first_order).scalar_one())
        assert sentence_of_read(session).startswith(WITHOUT)
        session.rollback()
        if not engine.dialect.insert_returning:
            return
        memo = session.execute(sa.insert(Memo).values(total=1).returning(Memo)).scalar_one()
        session.add(Note(memo_id=memo.id))
        session.flush()


def joined(session: LockingSession) -> Any:
    return session.scalars(first_order.options(joinedload(Order.lines))).unique().one().lines[0]


def selected_in(session: LockingSession) -> Any:
    return session.scalars(with_lines).one().lines[0]


@pytest.mark.parametrize("read", [joined, selected_in])
def test_a_line_that_was_read_with_its_header_is_reported(
    session: LockingSession, read: Read
) -> None:
    change(read(session))
    assert ("gd_line_1" if read is joined else "FROM gd_line") in sentence_of_read(session)


def test_a_header_whose_lines_were_read_with_it_is_reported(session: LockingSession) -> None:
    order = session.scalars(with_lines).one()
    assert order.lines
    change(order)
    assert "FROM gd_order" in sentence_of_read(session)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("of_line", [False, True])
def test_under_asyncio_too_where_all_is_read_at_once(documents: Database, of_line: bool) -> None:
    async def main() -> str:
        engine = create_async_engine(sa.make_url(documents.url).set(drivername="sqlite+aiosqlite"))
        async with AsyncLockingSession(engine, guard_tracing=True) as session:
            order = (await session.scalars(with_lines)).one()
            change(order.lines[0] if of_line else order)
            with pytest.raises(UnlockedWrite) as caught:
                await session.flush()
        await engine.dispose()
        return str(caught.value.args[0])

    assert f"FROM {'gd_line' if of_line else 'gd_order'}" in asyncio.run(main())


def test_a_row_that_a_flush_reads_while_another_is_read(session: LockingSession) -> None:
    lease = session.get_one_entity(Lease, 1, LockOptions.ForUpdate)
    found: list[Order] = []

    def read_another(session: Session, *_: object) -> None:
        with session.no_autoflush:
            found.append(session.get_one(Order, 2))

    lease.total += 1
    event.listen(session, "before_flush", read_another)
    order = session.scalars(sa.select(Order).where(Order.total > 29)).one()  # flushes before it
    assert order.id == 1
    order.total += 1
    assert "gd_order.total >" in sentence_of_read(session)
    session.expire(order)
    found[0].total += 1
    sentence = sentence_of_read(session)
    assert "FROM gd_order" in sentence
    assert "gd_order.total >" not in sentence


@pytest.mark.parametrize("expires", ["commit", "expire_all", "expire"])
def test_a_row_that_had_expired_is_reported_as_it_was_read_again(
    session: LockingSession, expires: str
) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    session.commit()
    if expires != "commit":
        assert order.total
        session.expire_all() if expires == "expire_all" else session.expire(order)
    assert session.scalars(sa.select(Order).where(Order.total > 29)).all() == [order]
    order.total += 1
    sentence = sentence_of_read(session)
    assert sentence.startswith(WITHOUT)
    assert "gd_order.total >" in sentence


def test_a_row_that_was_read_over_again_is_reported_so(session: LockingSession) -> None:
    order = session.get_one(Order, 1)
    again = sa.select(Order).where(Order.total > 29).execution_options(populate_existing=True)
    assert session.scalars(again).one() is order
    order.total += 1
    assert "gd_order.total >" in sentence_of_read(session)


@pytest.mark.databases("sqlite", "postgresql", "mariadb")
def test_a_row_that_an_insert_has_returned(make_session: MakeSession) -> None:
    session = make_session(expire_on_commit=False)
    order = session.scalars(sa.insert(Order).values(id=9, total=1).returning(Order)).one()
    session.commit()
    order.total += 1
    assert sentence_of_read(session).startswith(
        "It was read without the lock by INSERT INTO gd_order"
    )


@pytest.mark.databases("sqlite", "postgresql", "mariadb")
@pytest.mark.parametrize("columns", [(Memo,), (Memo, Memo.total)], ids=["object", "row"])
def test_an_insert_whose_result_a_listener_has_kept(
    session: LockingSession, columns: tuple[Any, ...]
) -> None:
    def keep(state: Any) -> Any:
        return state.invoke_statement().freeze()()

    event.listen(session, "do_orm_execute", keep)
    memo = session.execute(sa.insert(Memo).values(total=1).returning(*columns)).scalar_one()
    event.remove(session, "do_orm_execute", keep)
    session.add(Note(memo_id=memo.id))
    session.flush()


def test_nothing_is_reported_of_rows_that_a_listener_has_brought(session: LockingSession) -> None:
    def answer_from_a_cache(state: Any) -> Any:
        return state.invoke_statement().freeze()() if state.is_select else None

    event.listen(session, "do_orm_execute", answer_from_a_cache)
    order = session.scalars(first_order).one()
    event.remove(session, "do_orm_execute", answer_from_a_cache)
    order.total += 1
    assert sentence_of_read(session) == ""


def test_a_listener_may_answer_with_a_result_of_its_own(session: LockingSession) -> None:
    def answer(_state: object) -> Any:
        return ChunkedIteratorResult(SimpleResultMetaData(["n"]), lambda _size: iter([[(1,)]]))

    event.listen(session, "do_orm_execute", answer)
    answers: list[Any] = [session.execute(first_order).scalar_one(), session.scalar(first_order)]
    answers += session.scalars(first_order).all()
    assert answers == [1, 1, 1]


def test_nothing_is_reported_of_a_copy(session: LockingSession) -> None:
    order = session.get_one(Order, 1)
    session.expunge(order)
    session.add(copy := pickle.loads(pickle.dumps(order)))
    assert isinstance(session.scalar(sa.select(Line).where(Line.id == 1)), Line)
    copy.total += 1
    assert sentence_of_read(session) == ""


def execute_lines(session: LockingSession) -> Any:
    return session.execute(sa.select(Line).where(Line.id == 1)).scalar_one()


def scalar_line(session: LockingSession) -> Any:
    return session.scalar(sa.select(Line).where(Line.id == 1))


def reads_of(session: LockingSession) -> list[refusals.Execution]:
    guard = context_of(session).parts.guard
    assert isinstance(guard, refusals.Refusals)
    assert guard._reads is not None
    return guard._reads._reads


@pytest.mark.parametrize("read_lines", [execute_lines, scalar_line])
def test_the_last_statements_are_remembered(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch, read_lines: Read
) -> None:
    monkeypatch.setattr(refusals, "READS_REMEMBERED", 4)
    session = make_session()
    order = session.get_one(Order, 1)
    line = [read_lines(session) for _ in range(5)][-1]
    assert len(reads_of(session)) <= 4
    order.total += 1
    assert sentence_of_read(session) == ""
    session.expire(order)
    change(line)
    assert "FROM gd_line" in sentence_of_read(session)


@pytest.mark.parametrize("end", ["close", "reset", "invalidate"])
def test_no_statement_is_remembered_when_the_session_has_given_up_its_objects(
    session: LockingSession, end: str
) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    assert reads_of(session)
    getattr(session, end)()
    assert not reads_of(session)


def test_an_object_costs_no_call_when_it_is_read(session: LockingSession) -> None:
    assert session.scalars(sa.select(Line)).all()  # maps its class, and attaches the listeners
    assert [*sa.inspect(Line).class_manager.dispatch.load] == []
    assert [*sa.inspect(Order).class_manager.dispatch.load] == []
