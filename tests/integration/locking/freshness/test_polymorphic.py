"""A header read as its base class: the columns that subclasses add are read after the grant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    Bundle,
    aliased,
    column_property,
    registry,
    relationship,
    with_polymorphic,
)

from sa_doclock import LockingSession, LockMisuse, LockOptions, with_lock
from tests.integration.locking.steps import add_ten, finds_held, save
from tests.support.actors import Actor
from tests.support.models import Contract, Lease, Line, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.each_value

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
_orders: Any = Order.__table__
_lines: Any = Line.__table__
_SUM = (
    sa.select(sa.func.sum(_lines.c.value))
    .where(_lines.c.order_id == _orders.c.id)
    .scalar_subquery()
)


def _hierarchy(*, base: dict[str, Any], sub: dict[str, Any], lazy: Any) -> Any:
    """Map a class of orders, and a subclass, of every row, with lines and their sum."""
    mappers = registry()
    paper: Any = type("Paper", (), {})
    bill: Any = type("Bill", (paper,), {})
    kind = sa.case((_orders.c.id > 0, "bill"), else_="paper")
    mappers.map_imperatively(
        paper,
        _orders,
        polymorphic_on=kind,
        polymorphic_identity="paper",
        exclude_properties=["remark"],
        **base,
    )
    lines = relationship(
        Line, primaryjoin=_lines.c.order_id == _orders.c.id, viewonly=True, lazy=lazy
    )
    mappers.map_imperatively(
        bill,
        inherits=paper,
        polymorphic_identity="bill",
        properties={"lines": lines, "sum_of_lines": column_property(_SUM)},
        exclude_properties=["remark"],
        **sub,
    )
    return paper


MAPPINGS: dict[str, Any] = {
    "inline, joined": _hierarchy(base={}, sub={"polymorphic_load": "inline"}, lazy="joined"),
    "inline, subquery": _hierarchy(base={}, sub={"polymorphic_load": "inline"}, lazy="subquery"),
    "star, joined": _hierarchy(base={"with_polymorphic": "*"}, sub={}, lazy="joined"),
    "selectin, joined": _hierarchy(base={}, sub={"polymorphic_load": "selectin"}, lazy="joined"),
    "not loaded": _hierarchy(base={}, sub={}, lazy="joined"),
}


def by_key(session: LockingSession, paper: Any) -> Any:
    return session.get_one_entity(paper, 1, ForUpdate)


def by_keys(session: LockingSession, paper: Any) -> Any:
    (found,) = session.get_entities(paper, [1], SharedRead)
    return found


def as_document(session: LockingSession, paper: Any) -> Any:
    found = session.get_document(paper, 1, ForUpdate)
    assert found is not None
    return found


def in_a_set(session: LockingSession, paper: Any) -> Any:
    return session.scalars(session.entity_set(paper, ForUpdate).where(paper.id == 1)).one()


def aliased_set(session: LockingSession, paper: Any) -> Any:
    alias: Any = aliased(paper)
    return session.scalars(session.entity_set(alias, ForUpdate).where(alias.id == 1)).one()


def polymorphic_set(session: LockingSession, paper: Any) -> Any:
    every: Any = with_polymorphic(paper, "*")
    return session.scalars(session.entity_set(every, SharedRead).where(every.id == 1)).one()


READS = [by_key, by_keys, as_document, in_a_set, aliased_set, polymorphic_set]


@pytest.mark.not_databases("sqlite", "mssql")  # there no session waits for a row
@pytest.mark.parametrize("paper", MAPPINGS.values(), ids=MAPPINGS)
@pytest.mark.parametrize("read", READS)
def test_header_and_what_its_subclass_adds_belong_together(
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    paper: Any,
    read: Callable[[LockingSession, Any], Any],
) -> None:
    def look(session: LockingSession) -> tuple[int, int, int]:
        found = read(session, paper)
        return found.total, sum(line.value for line in found.lines), int(found.sum_of_lines)

    alice.does(add_ten)
    step = bob.starts(look)
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(save)
    assert step.result() == (40, 40, 40)


@pytest.mark.parametrize("paper", MAPPINGS.values(), ids=MAPPINGS)
@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_it_is_a_lock(
    session: LockingSession, paper: Any, read: Callable[[LockingSession, Any], Any]
) -> None:
    read(session, paper)
    assert list(session.held_locks) == [(paper, (1,))]


# --------------------------------------------------------------------------------------------------
# Joined inheritance: a key that belongs to a row of another class. Its lock is released.

OTHER = 7
Session = LockingSession


@pytest.fixture
def other_class(elsewhere: Callable[..., list[Any]]) -> None:
    """Insert a contract that is not a lease."""
    elsewhere(
        sa.delete(Contract).where(Contract.id == OTHER),
        sa.insert(Contract).values(id=OTHER, kind="contract", total=0),
    )


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
@pytest.mark.usefixtures("other_class")
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_the_lock_is_given_back(session: Session, other: Session, lock: LockOptions) -> None:
    assert session.get_entity(Lease, OTHER, lock) is None
    assert not session.held_locks
    assert not finds_held(Contract, OTHER)(other)
    assert session.get_entities(Lease, [OTHER], lock) == []
    assert not finds_held(Contract, OTHER)(other)
    assert session.get_document(Lease, OTHER, lock) is None
    assert not finds_held(Contract, OTHER)(other)


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
@pytest.mark.usefixtures("other_class")
def test_in_a_callers_transaction_it_is_listed(session: Session, other: Session) -> None:
    with session.begin():
        assert session.get_entity(Lease, OTHER, ForUpdate) is None
        assert dict(session.held_locks) == {(Contract, (OTHER,)): ForUpdate}
        assert finds_held(Contract, OTHER)(other)
        session.rollback()
    assert not finds_held(Contract, OTHER)(other)


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
@pytest.mark.usefixtures("other_class")
def test_beside_a_lease_it_is_listed(session: Session, other: Session) -> None:
    found = session.get_entities(Lease, [1, OTHER], ForUpdate)
    keys = [(Contract, (one.id,)) for one in found]
    assert set(session.held_locks) == {*keys, (Contract, (OTHER,))}
    assert finds_held(Contract, OTHER)(other)


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
@pytest.mark.usefixtures("other_class")
def test_the_lock_of_the_root_is_refused_nothing(session: Session) -> None:
    with session.locked(Contract, OTHER) as contract:
        assert session.get_entity(Lease, OTHER, ForUpdate) is None
        contract.total = 1
    assert session.get_one(Contract, OTHER).total == 1


# --------------------------------------------------------------------------------------------------
# A row with two identity tokens in a session: the lock leaves neither object stale.

Way = Callable[[LockingSession], Any]
ONE = sa.select(Order).where(Order.id == 1)
TOKEN = {"identity_token": "north"}
_light = sa.table(_orders.name, sa.column("id"))

WAYS: dict[str, Way] = {
    "get_entity": lambda session: session.get_entity(Order, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, [1, 2], ForUpdate),
    "a set": lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
    "adopted": lambda session: session.scalars(ONE.with_for_update()).all(),
    "query": lambda session: session.query(Order).with_for_update().filter_by(id=1).one(),
    "a key": lambda session: session.execute(
        sa.select(Order.id).where(Order.id == 1).with_for_update()
    ).all(),
    "the table": lambda session: session.execute(
        sa.select(_orders).where(_orders.c.id == 1).with_for_update()
    ).all(),
    "a table()": lambda session: session.execute(
        sa.select(_light).where(_light.c.id == 1).with_for_update()
    ).all(),
}


@pytest.mark.read_committed
@pytest.mark.not_databases("mssql")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_object_under_a_token_is_not_left_old(session: LockingSession, way: Way) -> None:
    kept = session.scalars(ONE, execution_options=TOKEN).one()
    with pytest.raises(LockMisuse, match=r"Order 1 under .* also has it under 'north'"):
        way(session)
    session.rollback()
    del kept


@pytest.mark.read_committed
@pytest.mark.not_databases("mssql")
def test_nor_one_without_where_the_lock_has_a_token(session: LockingSession) -> None:
    kept = session.scalars(ONE).one()
    with pytest.raises(LockMisuse, match="also has it under None"):
        session.scalars(ONE.with_for_update(), execution_options=TOKEN).all()
    session.rollback()
    del kept


@pytest.mark.read_committed
@pytest.mark.not_databases("mssql")
def test_one_object_under_its_own_token_is_read_again(
    session: LockingSession, elsewhere: Callable[..., Any]
) -> None:
    kept = session.scalars(ONE, execution_options=TOKEN).one()
    session.commit()
    kept.total  # noqa: B018  # loads it again
    elsewhere(sa.update(Order).where(Order.id == 1).values(total=99))
    (order,) = session.scalars(ONE.with_for_update(), execution_options=TOKEN)
    assert order is kept
    assert order.total == 99


@pytest.mark.read_committed
@pytest.mark.not_databases("mssql")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_expunged_object_is_no_hindrance(session: LockingSession, way: Way) -> None:
    session.expunge(session.scalars(ONE, execution_options=TOKEN).one())
    way(session)
    assert session.held_locks


# --------------------------------------------------------------------------------------------------
# A header with a column computed from its details: both are read after the lock is granted.


class Summed:
    """An order that includes the sum of its lines."""

    id: Any
    total: Any
    sum_of_lines: Any


registry().map_imperatively(
    Summed,
    _orders,
    properties={"sum_of_lines": column_property(_SUM)},
    exclude_properties=["remark"],
)

Read = Callable[[LockingSession], tuple[int, int]]


def by_key_computed_columns(session: LockingSession) -> tuple[int, int]:
    order = session.get_one_entity(Summed, 1, ForUpdate)
    return order.total, int(order.sum_of_lines)


def by_keys_computed_columns(session: LockingSession) -> tuple[int, int]:
    (order,) = session.get_entities(Summed, [1], SharedRead)
    return order.total, int(order.sum_of_lines)


def in_a_set_computed_columns(session: LockingSession) -> tuple[int, int]:
    order = session.scalars(session.entity_set(Summed, ForUpdate).where(Summed.id == 1)).one()
    return order.total, int(order.sum_of_lines)


def beside_the_order(session: LockingSession) -> tuple[int, int]:
    statement = with_lock(sa.select(Order, _SUM).where(Order.id == 1), ForUpdate)
    order, total = session.execute(statement).one()
    return order.total, int(total)


def _beside_the_total(session: LockingSession, *columns: Any) -> tuple[int, int]:
    statement = with_lock(sa.select(*columns).where(Summed.id == 1), ForUpdate, Summed)
    total, computed = session.execute(statement).one()
    return total, int(computed)


def as_attributes(session: LockingSession) -> tuple[int, int]:
    return _beside_the_total(session, Summed.total, Summed.sum_of_lines)


def as_text(session: LockingSession) -> tuple[int, int]:
    text: Any = sa.literal_column("(SELECT sum(value) FROM lk_line WHERE order_id = lk_order.id)")
    return _beside_the_total(session, Summed.total, text)


def in_a_bundle(session: LockingSession) -> tuple[int, int]:
    bundle: Any = Bundle("both", Summed.total, Summed.sum_of_lines)
    statement = with_lock(sa.select(bundle).where(Summed.id == 1), ForUpdate, Summed)
    total, computed = session.scalars(statement).one()
    return total, int(computed)


READS_COMPUTED_COLUMNS = [
    by_key_computed_columns,
    by_keys_computed_columns,
    in_a_set_computed_columns,
    beside_the_order,
    as_attributes,
    as_text,
    in_a_bundle,
]


@pytest.mark.not_databases("sqlite", "mssql")  # there no session waits for a row
@pytest.mark.parametrize("read", READS_COMPUTED_COLUMNS)
def test_header_and_sum_belong_together(
    alice: Actor[LockingSession], bob: Actor[LockingSession], read: Read
) -> None:
    alice.does(add_ten)
    step = bob.starts(read)
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(save)
    assert step.result() == (40, 40)
