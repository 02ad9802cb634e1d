"""SQLAlchemy's own with_for_update() on a set; the reasons why the library refuses or avoids it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, subqueryload

from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from tests.integration.locking.steps import finds_held, recorded
from tests.support.models import Line, Order

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate

REFUSED: Mapping[str, Any] = {
    "DISTINCT": sa.select(Order).distinct(),
    "GROUP BY": sa.select(Order.total).group_by(Order.total),
    "an aggregate": sa.select(sa.func.count(Order.id)),
    "a window": sa.select(Order, sa.func.row_number().over(order_by=Order.id)),
    "the optional side": sa.select(Line, Order).outerjoin(Line.order),
}


@pytest.mark.databases("postgresql")
def test_postgresql_refuses_what_is_no_row_of_a_table(engine: sa.Engine) -> None:
    union = "SELECT id FROM lk_order UNION SELECT id FROM lk_order FOR UPDATE"
    refused: dict[str, sa.Executable] = {"UNION": sa.text(union)}
    refused |= {name: query.with_for_update(of=Order) for name, query in REFUSED.items()}
    for name, query in refused.items():
        with Session(engine) as plain, pytest.raises(DBAPIError) as caught:
            plain.execute(query)
        assert getattr(caught.value.orig, "sqlstate", None) == "0A000", name


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("name", REFUSED)
def test_so_does_the_library(session: LockingSession, name: str) -> None:
    with pytest.raises(LockNotSupported):
        session.execute(with_lock(REFUSED[name], ForUpdate, Order))


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_joined_row_is_locked_along_where_there_is_no_of(
    engine: sa.Engine, other: LockingSession
) -> None:
    query = sa.select(Order).join(Order.lines).where(Line.id == 2).with_for_update(of=Order)
    with Session(engine) as plain:
        order = plain.scalars(query).one()
        no_of = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else engine.dialect.name
        assert finds_held(Line, 2)(other) is (no_of == "mariadb")
        assert order


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_subqueryload_repeats_the_lock(engine: sa.Engine) -> None:
    query = sa.select(Order).options(subqueryload(Order.lines)).with_for_update()
    with Session(engine) as plain, recorded(engine) as statements:
        plain.scalars(query).all()
    assert len([text for text in statements if "FOR UPDATE" in text]) == 2
