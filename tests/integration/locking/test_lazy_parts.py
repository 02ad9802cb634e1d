"""The collections of a locked header are loaded as SQLAlchemy loads them, by a SELECT built once."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
import sqlalchemy as sa
from sqlalchemy import event, inspect
from sqlalchemy.exc import InvalidRequestError, SAWarning
from sqlalchemy.orm import (
    ColumnProperty,
    Session,
    column_property,
    foreign,
    raiseload,
    registry,
    relationship,
    sessionmaker,
    with_loader_criteria,
)
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.exc import DetachedInstanceError, ObjectDeletedError

from sa_doclock import LockingSession, LockOptions, claim_each, with_lock
from sa_doclock.locking.lazy_parts import PartLoader, loaders_of
from tests.integration.documents.models import Category
from tests.integration.locking.steps import FIRST, recorded, seen
from tests.support.models import Line, Order, Ticket, Voucher

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
_orders: Any = Order.__table__
_lines: Any = Line.__table__


class PlainLine:
    """A line that leads nowhere."""


class LineWithOrder:
    """A line that loads its order with it."""


class LineWithoutKey:
    """A line whose foreign key is not mapped."""


class LineOfOrder:
    """A line that is known by its order alone, so that two rows are one object."""


class LineBySize:
    """A line whose foreign key is compared in another way where a program compares it."""


class PlainOrder:
    """The order of a line."""


mappings = registry()
_numbers = itertools.count()
mappings.map_imperatively(PlainOrder, _orders)
mappings.map_imperatively(PlainLine, _lines)
mappings.map_imperatively(LineWithoutKey, _lines, exclude_properties=["order_id"])
mappings.map_imperatively(LineOfOrder, _lines, primary_key=[_lines.c.order_id])


class Greater(ColumnProperty.Comparator[int]):
    """Takes any number from the other one on for equal."""

    def __eq__(self, other: object) -> Any:
        column: Any = self.__clause_element__()
        return column >= other

    __hash__ = ColumnProperty.Comparator.__hash__


mappings.map_imperatively(
    LineBySize,
    _lines,
    properties={"order_id": column_property(_lines.c.order_id, comparator_factory=Greater)},
)
mappings.map_imperatively(
    LineWithOrder,
    _lines,
    properties={"order": relationship(PlainOrder, lazy="selectin", viewonly=True)},
)


def order_with(target: Any, base: type[Any] = object, **how: Any) -> type[Any]:
    """Return a class of orders whose lines are mapped like this."""
    entity = type(f"Order{next(_numbers)}", (base,), {})
    lines = relationship(target, viewonly=True, order_by=_lines.c.id, **how)
    if base is object:
        mappings.map_imperatively(entity, _orders, properties={"lines": lines})
    else:
        with catch_warnings():
            simplefilter("ignore", SAWarning)  # the relationship of the base is mapped again
            mappings.map_imperatively(entity, inherits=base, properties={"lines": lines})
    return entity


_own: Any = _orders.c.id == _lines.c.order_id
_some = sa.and_(_own, _lines.c.value > FIRST[1][0])
PLAIN = order_with(PlainLine)
TWICE: type[Any] = type("Twice", (), {})
mappings.map_imperatively(
    TWICE,
    _orders,
    properties={
        "lines": relationship(PlainLine, viewonly=True),
        "same": relationship(LineWithOrder, viewonly=True),
    },
)
BY_SIZE = order_with(LineBySize)
REPEATED = order_with(LineOfOrder)
UNUSUAL: dict[str, type[Any]] = {
    "the lines load their order": order_with(LineWithOrder),
    "the lines do not tell their order": order_with(LineWithoutKey),
    "not all lines": order_with(PlainLine, primaryjoin=_some),
    "a key for two columns": order_with(
        PlainLine,
        primaryjoin=sa.and_(
            _orders.c.id == foreign(_lines.c.id), _orders.c.id == foreign(_lines.c.order_id)
        ),
    ),
    "a subclass with not all lines": order_with(
        PlainLine, order_with(PlainLine), primaryjoin=_some
    ),
    "a subclass with one line": order_with(
        PlainLine, order_with(PlainLine), primaryjoin=_own, uselist=False
    ),
    "a subclass that never loads them": order_with(PlainLine, order_with(PlainLine), lazy="raise"),
    "one line": order_with(PlainLine, primaryjoin=_own, uselist=False),
    "with the order": order_with(PlainLine, lazy="selectin"),
    "never": order_with(PlainLine, lazy="raise"),
}


def has_loader(entity: object) -> bool:
    return any(isinstance(one, PartLoader) for one in inspect(entity).callables.values())


def locked(session: LockingSession, **how: Any) -> Order:
    return session.get_one_entity(Order, 1, ForUpdate, **how)


def without(entity: Any) -> Any:
    """Return the object as SQLAlchemy has it, with no loader of ours."""
    inspect(entity).callables = {}
    return entity


@pytest.mark.parametrize("lock", [ForUpdate, LockOptions.SharedRead, LockOptions.SnapshotRead])
def test_the_lines_are_read_by_one_statement_of_get_document(
    engine: sa.Engine, session: LockingSession, lock: LockOptions
) -> None:
    order = session.get_one_entity(Order, 1, lock)
    assert has_loader(order)
    with recorded(engine) as lazy:
        assert seen(order) == FIRST
    session.rollback()
    with recorded(engine) as whole:
        session.get_document(Order, 1, lock)
    (select,) = (text for text in lazy if "lk_line" in text)
    assert select in whole


def by_keys(session: LockingSession) -> Sequence[Order]:
    return session.get_entities(Order, [1, 2], ForUpdate)


def by_set(session: LockingSession) -> Sequence[Order]:
    return session.scalars(session.entity_set(Order, ForUpdate)).all()


def by_join(session: LockingSession) -> Sequence[Order]:
    joined = sa.select(Order).join(Order.lines).order_by(Line.id)
    return session.scalars(with_lock(joined, ForUpdate)).unique().all()


@pytest.mark.parametrize("lock", [by_keys, by_set, by_join])
def test_all_of_several_documents_have_the_loader(
    session: LockingSession, lock: Callable[[LockingSession], Sequence[Order]]
) -> None:
    orders = lock(session)
    assert all(map(has_loader, orders))
    assert sum(line.value for order in orders for line in order.lines) == sum(
        order.total for order in orders
    )


def test_a_claimed_document_has_the_loader(engine: sa.Engine) -> None:
    claims = claim_each(sessionmaker(engine, class_=LockingSession), sa.select(Order))
    for claim in claims:
        with claim as order:
            assert has_loader(order)
            assert sum(line.value for line in order.lines) == order.total


def test_a_composite_key(session: LockingSession) -> None:
    voucher = session.scalars(sa.select(Voucher).limit(1)).one()
    session.rollback()
    key = inspect(voucher).identity
    voucher = session.get_one_entity(Voucher, key, ForUpdate)
    assert has_loader(voucher)
    assert sum(entry.value for entry in voucher.entries) == voucher.total


def test_a_class_without_collections_has_none(session: LockingSession) -> None:
    assert not has_loader(session.get_one_entity(Ticket, 1, ForUpdate))


@pytest.mark.parametrize("end", [Session.commit, Session.rollback])
def test_the_end_of_the_transaction_takes_it_away(
    session: LockingSession, end: Callable[[Session], None]
) -> None:
    order = locked(session)
    assert order.lines
    end(session)
    assert not has_loader(order)
    assert seen(order) == FIRST


def test_a_listener_sees_the_lazy_load(session: LockingSession) -> None:
    order, loads = locked(session), []

    def listen(state: Any) -> None:
        if state.is_relationship_load:
            loads.append(state.lazy_loaded_from.obj())
            criteria = with_loader_criteria(Line, Line.value > FIRST[1][0])
            state.statement = state.statement.options(criteria)

    event.listen(session, "do_orm_execute", listen)
    assert [line.value for line in order.lines] == FIRST[1][1:]
    assert loads == [order]


def test_criteria_of_the_call_are_those_of_the_lazy_load(session: LockingSession) -> None:
    criteria = with_loader_criteria(Line, Line.value > FIRST[1][0])
    order = locked(session, options=[criteria])
    assert [line.value for line in order.lines] == FIRST[1][1:]


def test_an_option_of_the_call_is_honoured(session: LockingSession) -> None:
    order = locked(session, options=[raiseload(Order.lines)])
    with pytest.raises(InvalidRequestError, match="raise"):
        _ = order.lines


def test_an_option_of_a_later_read_is_honoured(session: LockingSession) -> None:
    order = locked(session)
    again = sa.select(Order).where(Order.id == 1).execution_options(populate_existing=True)
    session.scalars(again.options(raiseload(Order.lines))).one()
    with pytest.raises(InvalidRequestError, match="raise"):
        _ = order.lines


def test_options_of_an_earlier_read_are_kept(session: LockingSession) -> None:
    criteria = with_loader_criteria(Line, Line.value > FIRST[1][0])
    order = session.scalars(sa.select(Order).where(Order.id == 1).options(criteria)).one()
    session.rollback()
    assert locked(session) is order
    assert [line.value for line in order.lines] == FIRST[1][1:]


def test_the_lines_of_a_key_that_is_not_flushed(session: LockingSession) -> None:
    order = locked(session)
    order.id = 2
    with session.no_autoflush:
        lines = [line.id for line in order.lines]
        session.expire(order, ["lines"])
        assert lines == [line.id for line in without(order).lines]


def test_the_lines_of_the_key_that_the_object_has(session: LockingSession) -> None:
    order = locked(session)
    set_committed_value(order, "id", 2)  # as by UPDATE, with ON UPDATE CASCADE
    assert {line.order_id for line in order.lines} == {2}


def test_an_order_that_has_vanished_has_no_empty_list(session: LockingSession) -> None:
    order = locked(session)
    for entity, key in ((Line, Line.order_id), (Order, Order.id)):
        gone = sa.delete(entity).where(key == 1)
        session.execute(gone.execution_options(synchronize_session=False))
    session.expire(order, ["id", "total"])
    with pytest.raises(ObjectDeletedError):
        _ = order.lines


def test_a_line_that_was_added_before_is_among_them(session: LockingSession) -> None:
    order = locked(session)
    with session.no_autoflush:
        line = Line(id=99, name="new", value=0, order=order)
        assert "lines" not in inspect(order).dict
        assert [one.id for one in order.lines][-1] == line.id


def test_an_access_that_must_not_send_anything_sends_nothing(
    engine: sa.Engine, session: LockingSession
) -> None:
    order = locked(session)
    with recorded(engine) as statements:
        assert not inspect(order).attrs.lines.history.has_changes()
    assert not [text for text in statements if "lk_line" in text]


def test_an_order_whose_insert_was_rolled_back_has_no_lines(
    engine: sa.Engine, session: LockingSession
) -> None:
    order = Order(id=9, total=0)
    session.add(order)
    session.flush()
    session.lock(order)
    session.expire(order, ["lines"])
    assert has_loader(order)
    session.rollback()
    session.add(order)
    with session.no_autoflush, recorded(engine) as statements:
        assert order.lines == []
    assert statements == []


def test_a_deleted_order_takes_its_lines_along(session: LockingSession) -> None:
    session.delete(locked(session))
    session.commit()
    assert session.scalars(sa.select(Line).where(Line.order_id == 1)).all() == []


def test_a_detached_order_says_so(session: LockingSession) -> None:
    order = locked(session)
    session.expunge(order)
    with pytest.raises(DetachedInstanceError, match="lines"):
        _ = order.lines


def test_a_pickled_order_does_not_need_the_library(
    engine: sa.Engine, session: LockingSession
) -> None:
    order = locked(session)
    assert has_loader(order)
    pickled = pickle.dumps(order)
    session.rollback()
    assert b"sa_doclock" not in pickled
    with Session(engine) as other:
        copy = pickle.loads(pickled)
        other.add(copy)
        assert not has_loader(copy)
        assert seen(copy) == FIRST


def test_a_merged_order_loads_its_lines_in_the_other_session(
    engine: sa.Engine, session: LockingSession
) -> None:
    order = locked(session)
    with Session(engine) as other:
        copy = other.merge(order, load=False)
        assert seen(copy) == FIRST
        assert all(inspect(line).session is other for line in copy.lines)


def keys_of_lines(order: Any) -> list[int] | str:
    """Return the keys of its lines, or the error of the access to them."""
    try:
        lines = order.lines
    except InvalidRequestError:
        return "raises"
    return [line.id for line in (lines if isinstance(lines, list) else [lines])]


def by_sqlalchemy(engine: sa.Engine, entity: type[Any]) -> list[int] | str:
    with Session(engine) as session:
        return keys_of_lines(session.get_one(entity, 1))


@pytest.mark.filterwarnings("ignore:Multiple rows returned with uselist=False")
@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_relationship_is_left_to_sqlalchemy(
    engine: sa.Engine, session: LockingSession, name: str
) -> None:
    order = session.get_one_entity(UNUSUAL[name], 1, ForUpdate)
    assert not has_loader(order)
    ours = keys_of_lines(order)
    session.rollback()
    assert ours == by_sqlalchemy(engine, UNUSUAL[name])


@pytest.mark.parametrize("entity", [PLAIN, BY_SIZE, REPEATED])
def test_the_lines_are_those_that_sqlalchemy_loads(
    engine: sa.Engine, session: LockingSession, entity: type[Any]
) -> None:
    order = session.get_one_entity(entity, 1, ForUpdate)
    assert has_loader(order)
    ours = keys_of_lines(order)
    session.rollback()
    assert ours == by_sqlalchemy(engine, entity)


@pytest.mark.filterwarnings("ignore:Multiple rows returned with uselist=False")
@pytest.mark.parametrize("name", [name for name in UNUSUAL if "never" not in name])
def test_a_whole_document_has_the_same_lines(
    engine: sa.Engine, session: LockingSession, name: str
) -> None:
    order = session.get_one_document(UNUSUAL[name], 1, ForUpdate)
    ours = keys_of_lines(order)
    session.rollback()
    assert ours == by_sqlalchemy(engine, UNUSUAL[name])


def test_a_plain_relationship_is_not(session: LockingSession) -> None:
    order = session.get_one_entity(PLAIN, 1, ForUpdate)
    assert has_loader(order)
    assert [line.value for line in order.lines] == FIRST[1]


def test_parts_of_their_own_kind_are_left_to_sqlalchemy() -> None:
    assert loaders_of(inspect(Category)).keys() == {"goods"}


@pytest.mark.parametrize("lock", [locked, by_keys, by_set])
def test_a_loader_of_the_program_stays_in_front(
    session: LockingSession, lock: Callable[[LockingSession], Any]
) -> None:
    order = locked(session)
    session.rollback()
    inspect(order).callables = {"lines": lambda _state, _passive: []}
    lock(session)
    assert order.lines == []


@pytest.mark.parametrize("loaded", [PlainLine, LineWithOrder], ids=["before", "meanwhile"])
def test_what_a_listener_has_changed_stays(session: LockingSession, loaded: type[Any]) -> None:
    def clear(_line: Any, _context: Any) -> None:
        order = session.get(TWICE, 1)
        assert order is not None
        order.same.clear()

    event.listen(loaded, "load", clear)
    try:
        order = session.get_one_document(TWICE, 1, ForUpdate)
    finally:
        event.remove(loaded, "load", clear)
    assert order.lines
    assert order.same == []


def test_a_document_that_is_held_and_loaded_is_not_read_again(
    engine: sa.Engine, session: LockingSession
) -> None:
    order = session.get_one_document(Order, 1, ForUpdate)
    with recorded(engine) as statements:
        assert session.get_document(Order, 1, ForUpdate) is order
    assert statements == []
