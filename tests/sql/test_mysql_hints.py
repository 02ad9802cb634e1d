"""The lock timeout on MySQL is an optimizer hint, beside those of the program."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import mysql

from sa_doclock import LockOptions, with_lock
from sa_doclock.dialects.mysql import MySQLLocks
from tests.sql.models import Order

ForUpdate = LockOptions.ForUpdate


@pytest.mark.parametrize(
    ("prefixes", "start"),
    [
        ((), "/*+ MAX_EXECUTION_TIME(400) */"),
        (("/*+ NO_ICP(o) */",), "/*+ MAX_EXECUTION_TIME(400) NO_ICP(o) */"),
        (("SQL_NO_CACHE",), "/*+ MAX_EXECUTION_TIME(400) */ SQL_NO_CACHE"),
        (
            ("/*+ NO_ICP(o)*/", "HIGH_PRIORITY", "/*+ BKA(o) */"),
            "/*+ MAX_EXECUTION_TIME(400) NO_ICP(o) BKA(o) */ HIGH_PRIORITY",
        ),
        (("/*+ max_execution_time( 90 ) */",), "/*+ MAX_EXECUTION_TIME(90) */"),
        (("/*+ MAX_EXECUTION_TIME(0) BKA(o) */",), "/*+ MAX_EXECUTION_TIME(400) BKA(o) */"),
        (("/*+ MAX_EXECUTION_TIME(9000) */",), "/*+ MAX_EXECUTION_TIME(400) */"),
        (("/* a remark */",), "/*+ MAX_EXECUTION_TIME(400) */ /* a remark */"),
    ],
)
def test_it_is_in_the_first_comment(prefixes: tuple[str, ...], start: str) -> None:
    statement = select(Order.id)
    for prefix in prefixes:
        statement = statement.prefix_with(prefix)
    locked = with_lock(statement, ForUpdate, Order)
    timed = MySQLLocks.waits.timed(locked, ForUpdate, 0.4)
    sent = timed.compile(dialect=mysql.dialect(), compile_kwargs={"render_postcompile": True})
    assert str(sent).startswith(f"SELECT {start} shop_order.id")
    assert timed._generate_cache_key() != locked._generate_cache_key()
