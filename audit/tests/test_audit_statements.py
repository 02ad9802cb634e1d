"""The row that an UPDATE of the program names by its key, as an audit sees it."""

from __future__ import annotations

from sqlalchemy import Column, ColumnElement, Integer, MetaData, Table, and_, or_, update
from sqlalchemy.dialects import sqlite

from doclock_audit.sent import facts_of, key_sent
from tests.support.rows import rows

LINES = Table(
    "lines",
    MetaData(),
    Column("order_id", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("amount", Integer),
)
ORDER, NUMBER, AMOUNT = LINES.c
KEY = and_(ORDER == 1, NUMBER == 2)


class Context:
    def __init__(self, where: ColumnElement[bool]) -> None:
        self.compiled = (
            update(LINES).values(amount=3).where(where).compile(dialect=sqlite.dialect())
        )


@rows(
    ("where", "key"),
    [
        (KEY, (1, 2)),
        (and_(NUMBER == 2, AMOUNT > 0, ORDER == 1), (1, 2)),
        (ORDER == 1, None),
        (or_(KEY, AMOUNT > 0), None),
        (and_(ORDER == 1, or_(NUMBER == 2, NUMBER == 3)), None),
    ],
    ids=str,
)
def test_an_update_names_a_row_only_where_each_row_that_it_meets_has_this_key(
    where: ColumnElement[bool], key: tuple[int, ...] | None
) -> None:
    context = Context(where)
    sent = facts_of("UPDATE", context).update
    assert sent is not None
    assert key_sent(sent.key, context.compiled.params) == key
