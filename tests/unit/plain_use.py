"""The use of a session that locks nothing, as programs do it, one action after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import delete, exc, func, insert, select, text, update
from sqlalchemy.orm import Session, joinedload, selectinload

from tests.support.models import Customer, Invoice, Lease, Line, Order, Voucher


def _flush_and_commit(session: Session) -> None:
    session.add(Order(id=9, total=1, lines=[Line(id=9, name="x", value=1)]))
    session.flush()
    session.commit()


def _change_and_autoflush(session: Session) -> list[int]:
    session.get_one(Order, 1).total = 7
    return list(session.scalars(select(Order.total).order_by(Order.id)))


def _lazy_load(session: Session) -> list[int]:
    return [line.value for line in session.get_one(Order, 1).lines]


def _expire_and_refresh(session: Session) -> int:
    order = session.get_one(Order, 1)
    session.expire(order, ["total"])
    total = order.total
    session.refresh(order)
    return total + order.total


def _savepoints(session: Session) -> int:
    with session.begin():
        session.add(Customer(id=8, name="kept"))
        with session.begin_nested() as inner:
            session.add(Customer(id=9, name="lost"))
            session.flush()
            inner.rollback()
    return session.scalars(select(func.count()).select_from(Customer)).one()


def _merge_and_delete(session: Session) -> None:
    session.merge(Customer(id=2, name="Bea"))
    session.delete(session.get_one(Order, 1))
    session.commit()


def _bulk(session: Session) -> list[Any]:
    results: list[Any] = [
        session.execute(insert(Customer), [{"id": 6, "name": "f"}, {"id": 7, "name": "g"}]),
        session.execute(update(Customer).where(Customer.id > 5).values(name="h")),
        session.execute(delete(Customer).where(Customer.id == 7)),
    ]
    session.commit()
    return [result.rowcount for result in results[1:]]


def _violate_a_constraint(session: Session) -> str:
    session.begin()
    session.add(Customer(id=1, name="there is one"))
    try:
        session.flush()
    except exc.IntegrityError as error:
        first = str(error)
    try:
        session.execute(select(Customer))
    except exc.PendingRollbackError as error:
        second = str(error)
    session.rollback()
    return first + second


def _leave_by_an_exception(session: Session) -> None:
    try:
        with session.begin():
            session.add(Customer(id=9, name="lost"))
            session.flush()
            session.get_one(Customer, 99)
    except exc.NoResultFound:
        pass


def _refused(session: Session) -> list[str]:
    wrong: list[Any] = ["SELECT 1", None, 1, Order, []]
    return [_refusal(session, statement) for statement in wrong]


def _refusal(session: Session, statement: Any) -> str:
    try:
        session.execute(statement)
    except exc.ArgumentError as error:
        return str(error)
    return "none"


def _streams(session: Session) -> list[int]:
    orders = session.scalars(select(Order).order_by(Order.id), execution_options={"yield_per": 1})
    return [order.id for order in orders]


def _ends(end: Callable[[Session], None]) -> Callable[[Session], Any]:
    def use(session: Session) -> tuple[bool, bool]:
        order = session.get_one(Order, 1)
        end(session)
        return session.in_transaction(), order in session

    return use


def _from_statement(session: Session) -> list[int]:
    statement: Any = select(Order).from_statement(
        text("SELECT id, total FROM lk_order ORDER BY id")
    )
    return [order.total for order in session.scalars(statement)]


def _twice(session: Session) -> bool:
    return session.get(Order, 1) is session.get(Order, 1, populate_existing=True)


USES: Mapping[str, Callable[[Session], Any]] = {
    "get": lambda s: s.get_one(Order, 1).total,
    "get with options": lambda s: len(
        s.get_one(Order, 1, options=[selectinload(Order.lines)]).lines
    ),
    "get composite": lambda s: s.get_one(Voucher, {"year": 2024, "number": 1}).total,
    "get nothing": lambda s: s.get(Order, 99),
    "get with_for_update": lambda s: s.get_one(Order, 1, with_for_update=True).total,
    "get twice": _twice,
    "joined inheritance": lambda s: s.get_one(Lease, 1).total,
    "mapped join": lambda s: s.get_one(Invoice, 1).customer.name,
    "joinedload": lambda s: len(
        s.scalars(select(Order).options(joinedload(Order.lines))).unique().all()
    ),
    "distinct": lambda s: s.scalars(select(Line.order_id).distinct()).all(),
    "with_for_update": lambda s: s.scalars(select(Order.id).with_for_update()).all(),
    "from_statement": _from_statement,
    "Query": lambda s: s.query(Order).filter(Order.id > 1).count(),
    "text": lambda s: s.execute(text("SELECT 1 AS one")).mappings().all(),
    "scalar": lambda s: s.scalar(select(Order.total).where(Order.id == 1)),
    "scalar with parameters": lambda s: s.scalar(text("SELECT :x + 1"), {"x": 1}),
    "connection": lambda s: s.connection().exec_driver_sql("SELECT 1").scalar(),
    "flush, commit": _flush_and_commit,
    "change, autoflush": _change_and_autoflush,
    "lazy load": _lazy_load,
    "expire, refresh": _expire_and_refresh,
    "savepoints": _savepoints,
    "merge, delete": _merge_and_delete,
    "bulk": _bulk,
    "constraint": _violate_a_constraint,
    "exception": _leave_by_an_exception,
    "refused": _refused,
    "yield_per": _streams,
    "bulk_save_objects": lambda s: s.bulk_save_objects([Customer(id=5, name="e")]),
    "rollback": _ends(Session.rollback),
    "close": _ends(Session.close),
    "invalidate": _ends(Session.invalidate),
    "reset": _ends(Session.reset),
}
