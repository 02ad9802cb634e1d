"""SKIP LOCKED skips rows that others checked out; any other set is refused, naming the document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased, sessionmaker

from sa_doclock import (
    CheckedOut,
    LockingSession,
    LockOptions,
    UnlockedWrite,
    claim_each,
    lease_each,
    with_lock,
)
from tests.integration.checkouts.models import CHECKOUTS, Article, Line, Memo, Order, expire
from tests.integration.checkouts.test_statements import sent

ForUpdate, SkipLocked = LockOptions.ForUpdate, LockOptions.SkipLocked
SKIPS = ForUpdate | SkipLocked
Other = aliased(Order)
of_line = sa.select(Order, Line).outerjoin(Line).order_by(Order.id)
Factory = sessionmaker[LockingSession]
Way = Callable[[LockingSession], Sequence[Any]]


def ids(found: Any) -> list[int]:
    return [one if isinstance(one, int) else one.id for one in found]


WAYS: dict[str, Way] = {
    "entity_set": lambda s: ids(s.scalars(s.entity_set(Order, SKIPS).order_by(Order.id))),
    "alias": lambda s: ids(s.scalars(s.entity_set(Other, SKIPS).order_by(Other.id))),
    "no key": lambda s: ids(s.scalars(s.entity_set(Order, SKIPS | LockOptions.NoKey))),
    "with_lock": lambda s: ids(s.execute(with_lock(of_line, SKIPS, Order)).scalars()),
    "get_entities": lambda s: ids(s.get_entities(Order, [3, 1, 2], SKIPS)),
    "get_documents": lambda s: ids(s.get_documents(Order, [3, 1, 2], SKIPS)),
    "adopted": lambda s: ids(s.scalars(sa.select(Order).with_for_update(skip_locked=True))),
    "adopted query": lambda s: ids(s.query(Order).with_for_update(skip_locked=True)),
    "adopted keys": lambda s: ids(s.scalars(sa.select(Order.id).with_for_update(skip_locked=True))),
    "adopted table": lambda s: ids(
        s.scalars(sa.select(Order.__table__.c.id.label("k")).with_for_update(skip_locked=True))
    ),
    "adopted alias": lambda s: ids(s.scalars(sa.select(Other).with_for_update(skip_locked=True))),
    "from_statement": lambda s: ids(
        s.scalars(
            sa.select(Order).from_statement(sa.select(Order).with_for_update(skip_locked=True))
        )
    ),
    "claims": lambda s: claimed(s, batch=1),
    "claims in a batch": lambda s: claimed(s, batch=3),
    "claims one per": lambda s: claimed(s, one_per=Order.id),
}
OF_CLAIMS = [WAYS[name] for name in WAYS if name.startswith("claims")]
LIMITED: dict[str, Way] = {
    "entity_set": lambda s: ids(s.scalars(s.entity_set(Order, SKIPS).order_by(Order.id).limit(1))),
    "adopted": lambda s: ids(
        s.scalars(sa.select(Order).order_by(Order.id).limit(1).with_for_update(skip_locked=True))
    ),
    "adopted query": lambda s: ids(
        s.query(Order).order_by(Order.id).limit(1).with_for_update(skip_locked=True)
    ),
    "adopted keys": lambda s: ids(
        s.scalars(sa.select(Order.id).order_by(Order.id).limit(1).with_for_update(skip_locked=True))
    ),
}


def claimed(session: LockingSession, **options: Any) -> list[int]:
    """Return the keys that claim_each() yields; no lock is left."""
    make = sessionmaker(session.get_bind(), class_=LockingSession, checkouts=CHECKOUTS)
    found = []
    for claim in claim_each(make, sa.select(Order).where(Order.total == 0), **options):
        with claim as order:
            found.append(order.id)
            order.total = 1
    return found


def taken(factory: Factory, *idents: int, owner: str = "ann") -> None:
    with factory() as session:
        for ident in idents:
            session.check_out(Order, ident, owner)
        session.commit()


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_is_left_out(factory: Factory, way: Way) -> None:
    taken(factory, 2)
    with factory() as session:
        assert sorted(way(session)) == [1, 3]
        held = set(session.held_locks)
        assert held == {(Order, (1,)), (Order, (3,))} or (not held and way in OF_CLAIMS)


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
@pytest.mark.parametrize("way", LIMITED.values(), ids=LIMITED)
def test_another_comes_in_its_place(factory: Factory, way: Way) -> None:
    with factory() as session:
        assert way(session) == [1]
        session.rollback()
        taken(factory, 1, 2)
        assert way(session) == [3]
        assert set(session.held_locks) == {(Order, (3,))}


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
@pytest.mark.databases("postgresql")  # counts like the others
def test_three_hundred_in_front_cost_a_handful_of_statements(
    factory: Factory, engine: sa.Engine
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.insert(Order), [{"id": n, "total": 0} for n in range(10, 310)])
    taken(factory, 1, 2, 3, *range(10, 309))
    with factory() as session:
        session.get_entity(Memo, 1)
        found: list[int] = []
        statements = sent(engine, lambda: found.extend(LIMITED["adopted"](session)))
        assert found == [309]
        assert len([one for one in statements if one.startswith("SELECT")]) == 7


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_all_of_them_may_be_left_out(factory: Factory) -> None:
    taken(factory, 1, 2, 3)
    for name, way in WAYS.items():
        with factory() as session:
            assert way(session) == [], name
            assert not session.held_locks


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_what_is_left_out_cannot_be_written(factory: Factory) -> None:
    taken(factory, 2)
    with factory() as session:
        session.get_one(Order, 2).total = 7
        with session.no_autoflush:
            session.execute(
                sa.select(Order.id).where(Order.id != 2).with_for_update(skip_locked=True)
            )
            assert session.scalars(sa.select(Order).with_for_update(skip_locked=True)).all()
        with pytest.raises(UnlockedWrite, match="Order 2"):
            session.commit()


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_what_the_session_holds_by_its_epoch_stays(factory: Factory) -> None:
    taken(factory, 1, 2)
    with factory() as session:
        session.get_one_entity(Order, 2, ForUpdate, checkout=1)
        for way in (WAYS["entity_set"], WAYS["adopted"], WAYS["get_entities"]):
            assert way(session) == [2, 3]
        assert LIMITED["adopted"](session) == [2]


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_two_classes_in_a_row(factory: Factory) -> None:
    with factory() as session:
        session.check_out(Article, "ABC", "ann")
        session.commit()
    with_none = sa.select(Order, Article).outerjoin(Article, Article.total == Order.total)
    with factory() as session:
        rows = sa.select(Order, Article).join(Article, Article.total == Order.total)
        assert session.execute(rows.with_for_update(skip_locked=True)).all() == []
        session.rollback()
        outer = with_none.with_for_update(of=Order, skip_locked=True)
        assert len(session.execute(outer).all()) == 3


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_one_that_does_not_skip_names_the_document(factory: Factory) -> None:
    taken(factory, 2)
    ways: list[Way] = [
        lambda s: s.get_entities(Order, [3, 2, 1], ForUpdate),
        lambda s: s.get_documents(Order, [3, 2, 1], ForUpdate),
        lambda s: s.scalars(s.entity_set(Order, ForUpdate)).all(),
    ]
    for way in ways:
        with factory() as session, pytest.raises(CheckedOut, match=r"Order 2 .*'ann'") as caught:
            way(session)
        assert (caught.value.entity, caught.value.ident) == (Order, 2)
        assert caught.value.checkout is not None
        assert caught.value.checkout.owner == "ann"


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_an_expired_one_is_not_left_out(factory: Factory, engine: sa.Engine) -> None:
    taken(factory, 2)
    expire(engine)
    with factory() as session:
        assert WAYS["entity_set"](session) == [1, 2, 3]


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_a_check_out_that_comes_between_the_tries(factory: Factory, engine: sa.Engine) -> None:
    """The lock of the second try finds it."""
    taken(factory, 1)
    with factory() as session, factory() as late:
        seen: list[str] = []

        def check_out_late(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            seen.append(statement)
            if len(seen) == 2:  # the first try found order 1
                late.check_out(Order, 2, "bob")
                late.commit()

        session.get_entity(Memo, 1)
        limited = sa.select(Order).order_by(Order.id).limit(1).with_for_update(skip_locked=True)
        sa.event.listen(engine, "after_cursor_execute", check_out_late)
        assert ids(session.scalars(limited)) == [3]


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_without_a_check_out_it_costs_one_statement(factory: Factory, engine: sa.Engine) -> None:
    plain = sessionmaker(engine, class_=LockingSession)
    for way in (WAYS["entity_set"], WAYS["adopted"], WAYS["get_entities"]):
        counts = []
        for make in (plain, factory):
            with make() as session:
                way(session)
                session.rollback()
                session.expunge_all()
                counts.append(len(sent(engine, partial(way, session))))
        assert counts[1] - counts[0] == 1


@pytest.mark.databases("postgresql", "mysql", "mariadb", "postgresql-pipeline")
def test_a_plain_session_sees_all(engine: sa.Engine, factory: Factory) -> None:
    """The control: without check-outs no row is left out."""
    taken(factory, 2)
    with Session(engine) as session:
        assert ids(session.scalars(sa.select(Order).with_for_update(skip_locked=True))) == [1, 2, 3]


# --------------------------------------------------------------------------------------------------
# claim_each() skips documents that are checked out.

TODO = sa.select(Order).where(Order.total == 0)


WAYS_CLAIMS: dict[str, dict[str, Any]] = {
    "alone": {},
    "batch": {"batch": 3},
    "one_per": {"one_per": Order.id},
}


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("options", WAYS_CLAIMS.values(), ids=WAYS_CLAIMS)
def test_it_is_skipped(factory: sessionmaker[LockingSession], options: dict[str, Any]) -> None:
    with factory() as session:
        session.check_out(Order, 2, "ann")
        session.commit()
    claims = claim_each(factory, TODO, **options)
    keys = []
    for claim in claims:
        with claim as order:
            order.total = 1
            keys.append(order.id)
    assert keys == [1, 3]
    assert (claims.report.processed, claims.report.skipped) == (2, 1)


MANY = 250
FIRST = 1_000


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("options", WAYS_CLAIMS.values(), ids=WAYS_CLAIMS)
def test_rows_that_others_have_checked_out_are_found_a_hundred_at_a_time(
    engine: sa.Engine, factory: sessionmaker[LockingSession], options: dict[str, Any]
) -> None:
    keys = range(FIRST, FIRST + MANY)
    with factory() as session:
        session.add_all([Order(id=key, total=2) for key in keys])
        session.flush()
        for key in keys:
            if key % 100 != 0:
                session.check_out(Order, key, "ann")
        session.commit()
    free = [key for key in keys if key % 100 == 0]
    todo = sa.select(Order).where(Order.total == 2).order_by(Order.id)
    claimed: list[int] = []

    def claim_all() -> None:
        for claim in claim_each(factory, todo, **options):
            with claim as order:
                claimed.append(order.id)

    def lease_all() -> None:
        for lease in lease_each(factory, todo, owner="bob"):
            with lease:
                claimed.append(lease.key)

    transactions = 0

    def count(_: object) -> None:
        nonlocal transactions
        transactions += 1

    sa.event.listen(engine, "begin", count)
    claim_all()
    assert claimed == free
    # Two reads of keys, one of check-outs per hundred and claim, and a try and a claim for each.
    assert transactions <= 2 + MANY // 100 + 1 + 4 * len(free)
    claimed.clear()
    transactions = 0
    lease_all()
    sa.event.remove(engine, "begin", count)
    assert claimed == free
    assert transactions <= 2 + MANY // 100 + 1 + 3 * len(free)
