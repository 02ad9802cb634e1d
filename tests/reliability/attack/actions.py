"""The actions of a program: the spellings of a lock, and the ways to write.

Each write adds one to a counter of one row, so that the counters show lost updates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions, atomic_update
from tests.reliability.attack.world import (
    LINES,
    ORDERS,
    Errand,
    Line,
    LineAgain,
    Order,
    OrderAgain,
    Remark,
    Task,
)

Action = Callable[[LockingSession, int], Any]
Counted = tuple[Action, tuple[tuple[str, int], ...]]
"""An action, and each counter that it adds one to: the table, and the position of the row in the document."""
FOR_UPDATE = LockOptions.ForUpdate


def orders_of(doc: int) -> Any:
    return sa.select(Order).where(Order.id == doc)


def _awaited(session: LockingSession, doc: int) -> Any:
    one = AsyncLockingSession()
    one.sync_session = session
    return asyncio.run(one.get_entity(Order, doc, FOR_UPDATE))


def _awaited_adopted(session: LockingSession, doc: int) -> Any:
    one = AsyncLockingSession()
    one.sync_session = session

    async def run() -> Any:
        return (await one.scalars(orders_of(doc).with_for_update())).one()

    return asyncio.run(run())


LOCKS: Mapping[str, Action] = {
    "get_entity": lambda s, doc: s.get_entity(Order, doc, FOR_UPDATE),
    "get_document": lambda s, doc: s.get_document(Order, doc, FOR_UPDATE),
    "get_entities": lambda s, doc: s.get_entities(Order, [doc], FOR_UPDATE),
    "entity_set": lambda s, doc: s.scalars(
        s.entity_set(Order, FOR_UPDATE).where(Order.id == doc)
    ).one(),
    "lock": lambda s, doc: s.lock(s.get_one(Order, doc)),
    "select": lambda s, doc: s.scalars(orders_of(doc).with_for_update()).one(),
    "get": lambda s, doc: s.get_one(Order, doc, with_for_update=True),
    "refresh": lambda s, doc: s.refresh(s.get_one(Order, doc), with_for_update=True),
    "query": lambda s, doc: s.query(Order).filter_by(id=doc).with_for_update().one(),
    "from_statement": lambda s, doc: s.scalars(
        sa.select(Order).from_statement(orders_of(doc).with_for_update())
    ).one(),
    "keys": lambda s, doc: s.execute(
        sa.select(Order.id).where(Order.id == doc).with_for_update()
    ).one(),
    "table": lambda s, doc: s.execute(
        sa.select(ORDERS).where(ORDERS.c.id == doc).with_for_update()
    ).one(),
    "second class": lambda s, doc: s.get_one(OrderAgain, doc, with_for_update=True),
    "second class, by us": lambda s, doc: s.get_entity(OrderAgain, doc, FOR_UPDATE),
    "shared": lambda s, doc: s.get_entity(Order, doc, LockOptions.SharedRead),
    "awaited": _awaited,
    "awaited select": _awaited_adopted,
}


def _counts(entity: Any, position: int = 0, factor: int = 10) -> Action:
    """Return an action that reads a row's counter and increments it."""

    def action(session: LockingSession, doc: int) -> Any:
        row = session.get_one(entity, factor * doc + position)
        row.count += 1
        return row

    return action


def _adds(entity: Any, position: int = 0, factor: int = 10) -> Action:
    """Return an action that does the same and flushes."""
    count = _counts(entity, position, factor)

    def action(session: LockingSession, doc: int) -> None:
        count(session, doc)
        session.flush()

    return action


def _along(change: Action) -> Action:
    """Return an action that changes a row outside documents, while a listener makes this change during the flush."""

    def action(session: LockingSession, doc: int) -> None:
        def also(*_: object) -> None:
            change(session, doc)

        session.get_one(Remark, 10 * doc + 1).count += 1
        event.listen(session, "before_flush", also)
        try:
            session.flush()
        finally:
            event.remove(session, "before_flush", also)

    return action


def _appends(session: LockingSession, doc: int) -> None:
    latest = sa.select(sa.func.max(LINES.c.id)).where(LINES.c.order_id == doc)
    session.add(Line(id=session.scalars(latest).one() + 1, order_id=doc, count=0))


def _becomes_a_part(entity: Any, attribute: str, kind: str) -> Action:
    """Return an action that makes a row a part of the document, and an action that undoes it, unguarded."""

    def action(session: LockingSession, doc: int) -> None:
        row = session.get_one(entity, 10 * doc + 1)
        before, row.count = getattr(row, attribute), row.count + 1
        setattr(row, attribute, kind)
        session.flush()
        with session.unguarded():
            setattr(row, attribute, before)
            session.flush()

    return action


def _by_mapping(session: LockingSession, doc: int) -> None:
    count = session.get_one(Line, 10 * doc).count + 1
    session.bulk_update_mappings(sa.inspect(Line), [{"id": 10 * doc, "count": count}])
    session.expire_all()


def executes(make: Callable[[int], Any]) -> Action:
    return lambda session, doc: session.execute(make(doc))


def plus_one(target: Any, columns: Any, key: int) -> Any:
    return sa.update(target).where(columns.id == key).values(count=columns.count + 1)


def _copied(doc: int) -> Any:
    """Add lines by INSERT .. FROM SELECT: the next key, the same document, the counter 0."""
    latest = sa.select(sa.func.max(LINES.c.id) + 1, sa.literal(doc), sa.literal(0))
    rows = latest.where(LINES.c.order_id == doc)
    return sa.insert(LINES).from_select(["id", "order_id", "count"], rows)


WRITES: Mapping[str, Counted] = {
    "header": (_adds(Order, factor=1), (("at_order", 0),)),
    "line": (_adds(Line), (("at_line", 0),)),
    "remark": (_adds(Remark), (("at_remark", 0),)),
    "errand": (_adds(Errand), (("at_task", 0),)),
    "header again": (_adds(OrderAgain, factor=1), (("at_order", 0),)),
    "line again": (_adds(LineAgain), (("at_line", 0),)),
    "by a listener": (_along(_counts(Line)), (("at_line", 0), ("at_remark", 1))),
    "inserted by a listener": (_along(_appends), (("lines", 0), ("at_remark", 1))),
    "mappings": (_by_mapping, (("at_line", 0),)),
    "update": (executes(lambda doc: plus_one(Line, Line, 10 * doc)), (("at_line", 0),)),
    "update header": (executes(lambda doc: plus_one(Order, Order, doc)), (("at_order", 0),)),
    "update again": (
        executes(lambda doc: plus_one(LineAgain, LineAgain, 10 * doc)),
        (("at_line", 0),),
    ),
    "update table": (
        executes(lambda doc: plus_one(LINES, LINES.c, 10 * doc)),
        (("at_line", 0),),
    ),
    "update task": (executes(lambda doc: plus_one(Task, Task, 10 * doc)), (("at_task", 0),)),
    "becomes an errand": (_becomes_a_part(Task, "kind", "errand"), (("at_task", 1),)),
    "becomes a remark": (_becomes_a_part(Remark, "owner_kind", "order"), (("at_remark", 1),)),
    "copied": (executes(_copied), (("lines", 0),)),
}
PENDING: Mapping[str, Counted] = {
    "header": (_counts(Order, factor=1), (("at_order", 0),)),
    "line": (_counts(Line), (("at_line", 0),)),
    "remark": (_counts(Remark), (("at_remark", 0),)),
    "errand": (_counts(Errand), (("at_task", 0),)),
    "header again": (_counts(OrderAgain, factor=1), (("at_order", 0),)),
    "line again": (_counts(LineAgain), (("at_line", 0),)),
}
"""Those that some later step flushes."""
VERSIONED = frozenset(
    {"line", "remark", "errand", "line again", "by a listener", "inserted by a listener"}
)
"""The writes whose flush raises the version of the header."""
FREE: Mapping[str, Counted] = {
    "another's remark": (_adds(Remark, 1), (("at_remark", 1),)),
    "task": (_adds(Task, 1), (("at_task", 1),)),
    "atomic": (
        executes(lambda doc: atomic_update(plus_one(Order, Order, doc))),
        (("at_order", 0),),
    ),
}
"""Those that need no lock."""
