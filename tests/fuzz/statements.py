"""What can be done to a select: before it gets its lock, and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Select, exists, func, literal, select, text, union_all
from sqlalchemy.orm import defaultload, joinedload, selectinload, subqueryload

from tests.sql.models import Customer, Line

Change = Callable[[Any, Any], Any]
"""Of a statement and its entity; what comes out may be no Select any more."""


def _in_order(statement: Select[Any], entity: Any) -> Select[Any]:
    return statement.order_by(_keys(entity)[0])


def _keys(entity: Any) -> list[Any]:
    names = ("year", "number") if hasattr(entity, "year") else ("id",)
    return [getattr(entity, name) for name in names]


def _total(entity: Any) -> Any:
    return entity.total


CHANGES: Mapping[str, Change] = {
    "where": lambda statement, entity: statement.where(_total(entity) < 100),
    "where of a key": lambda statement, entity: statement.where(_keys(entity)[0] == 1),
    "where nothing": lambda statement, entity: statement.where(literal(0) == 1),
    "order_by": _in_order,
    "limit": lambda statement, entity: _in_order(statement, entity).limit(10),
    "limit 0": lambda statement, entity: statement.limit(0),
    "fetch": lambda statement, entity: _in_order(statement, entity).fetch(10),
    "offset": lambda statement, entity: _in_order(statement, entity).limit(5).offset(0),
    "join": lambda statement, entity: statement.join(Customer, Customer.id <= _total(entity)),
    "outer join": lambda statement, entity: statement.outerjoin(
        Customer, Customer.id == _total(entity)
    ),
    "join of a subquery": lambda statement, entity: statement.join(
        (sub := select(Line.order_id).subquery()), sub.c.order_id == _keys(entity)[0]
    ),
    "exists": lambda statement, entity: statement.where(
        exists().where(Line.order_id == _keys(entity)[0])
    ),
    "in a subquery": lambda statement, entity: statement.where(
        _keys(entity)[0].in_(select(Line.order_id))
    ),
    "another entity": lambda statement, entity: statement.add_columns(Customer).join(
        Customer, Customer.id <= _total(entity)
    ),
    "a column more": lambda statement, entity: statement.add_columns(_total(entity)),
    "a scalar subquery": lambda statement, entity: statement.add_columns(
        select(func.max(Line.value)).where(Line.order_id == _keys(entity)[0]).scalar_subquery()
    ),
    "a key alone": lambda statement, entity: statement.with_only_columns(*_keys(entity)),
    "a count alone": lambda statement, entity: statement.with_only_columns(func.count()),
    "distinct": lambda statement, entity: statement.distinct(),
    "group_by": lambda statement, entity: statement.group_by(*_keys(entity)),
    "having": lambda statement, entity: statement.having(func.count() > 0),
    "union": lambda statement, entity: union_all(statement, statement),
    "from_statement": lambda statement, entity: select(entity).from_statement(statement),
    "text": lambda statement, entity: text("SELECT 1"),
    "selectinload": lambda statement, entity: statement.options(selectinload("*")),
    "joinedload": lambda statement, entity: statement.options(joinedload("*")),
    "subqueryload": lambda statement, entity: statement.options(subqueryload("*")),
    "defaultload": lambda statement, entity: statement.options(defaultload("*")),
    "with_for_update": lambda statement, entity: statement.with_for_update(read=True),
    "populate_existing": lambda statement, entity: statement.execution_options(
        populate_existing=True
    ),
    "yield_per": lambda statement, entity: statement.execution_options(yield_per=5),
    "stream_results": lambda statement, entity: statement.execution_options(stream_results=True),
    "autoflush": lambda statement, entity: statement.execution_options(autoflush=True),
}
