"""Changes of a select: before it gets its lock, and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Select, exists, func, literal, select, text, union_all
from sqlalchemy.orm import aliased, defaultload, joinedload, selectinload, subqueryload

from sa_doclock.core.documents.mapping import header_table
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


_buyer, _payer = aliased(Customer, name="buyer"), aliased(Customer, name="payer")

CHANGES: Mapping[str, Change] = {
    "where": lambda statement, entity: statement.where(_total(entity) < 100),
    "where of a key": lambda statement, entity: statement.where(_keys(entity)[0] == 1),
    "where nothing": lambda statement, _: statement.where(literal(0) == 1),
    "order_by": _in_order,
    "limit": lambda statement, entity: _in_order(statement, entity).limit(10),
    "limit 0": lambda statement, _: statement.limit(0),
    "fetch": lambda statement, entity: _in_order(statement, entity).fetch(10),
    "offset": lambda statement, entity: _in_order(statement, entity).limit(5).offset(0),
    "join": lambda statement, entity: statement.join(_buyer, _buyer.id <= _total(entity)),
    "outer join": lambda statement, entity: statement.outerjoin(
        _payer, _payer.id == _total(entity)
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
    "a count alone": lambda statement, _: statement.with_only_columns(func.count()),
    "distinct": lambda statement, _: statement.distinct(),
    "group_by": lambda statement, entity: statement.group_by(*_keys(entity)),
    "having": lambda statement, _: statement.having(func.count() > 0),
    "union": lambda statement, _: union_all(statement, statement),
    "from_statement": lambda statement, entity: select(entity).from_statement(statement),
    "text": lambda *_: text("SELECT 1"),
    "selectinload": lambda statement, _: statement.options(selectinload("*")),
    "joinedload": lambda statement, _: statement.options(joinedload("*")),
    "subqueryload": lambda statement, _: statement.options(subqueryload("*")),
    "defaultload": lambda statement, _: statement.options(defaultload("*")),
    "with_for_update": lambda statement, _: statement.with_for_update(read=True),
    "hint": lambda statement, entity: statement.with_hint(
        header_table(entity), "WITH (NOLOCK)", "mssql"
    ),
    "hint everywhere": lambda statement, entity: statement.with_hint(
        header_table(entity), "/* ! */"
    ),
    "hint of another table": lambda statement, _: statement.with_hint(
        Customer, "WITH (NOLOCK)", "mssql"
    ),
    "populate_existing": lambda statement, _: statement.execution_options(populate_existing=True),
    "yield_per": lambda statement, _: statement.execution_options(yield_per=5),
    "stream_results": lambda statement, _: statement.execution_options(stream_results=True),
    "autoflush": lambda statement, _: statement.execution_options(autoflush=True),
}

USUAL = ("where", "where of a key", "order_by", "limit", "join", "another entity", "a column more")
"""The changes that most programs make."""
