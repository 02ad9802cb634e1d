"""The cache of what is found out about a statement, for those with the same SQL and for no other."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, configure_mappers, mapped_column

from sa_doclock import document
from sa_doclock.adoption.for_update import froms_to_hint, locked_froms
from sa_doclock.adoption.locked_headers import adopted_by
from sa_doclock.core.documents.mapping import clear_mapper_caches
from sa_doclock.core.statements import statement_cache
from sa_doclock.dialects.mssql import SQLServerLocks
from tests.support.models import Line, Order

asked: list[Any] = []


@statement_cache
def noted(statement: sa.Select[Any], more: str = "") -> str:
    asked.append(statement)
    return f"{statement.column_descriptions[0]['name']}{more}"


class Unknown(sa.ColumnElement[int]):
    """An expression that SQLAlchemy does not cache."""

    inherit_cache = False
    type = sa.Integer()


def of_key(key: int) -> sa.Select[Any]:
    return sa.select(Order).where(Order.id == key)


def test_the_same_sql_is_looked_at_once() -> None:
    configure_mappers()  # this empties the cache
    asked.clear()
    assert noted(of_key(1)) == noted(of_key(2)) == "Order"
    assert len(asked) == 1
    assert noted(of_key(1).limit(1)) == "Order"
    assert len(asked) == 2


def test_what_is_found_while_the_caches_are_emptied_is_found_out_again_and_kept() -> None:
    """As where the function itself is the first to configure the mappers of another registry."""
    configuring = [clear_mapper_caches]

    @statement_cache
    def found(_statement: sa.Select[Any]) -> int:
        asked.append(_statement)
        if configuring:
            configuring.pop()()
        return len(asked)

    asked.clear()
    assert [found(of_key(1)), found(of_key(2))] == [2, 2]


def test_what_is_found_while_the_caches_are_emptied_each_time_is_not_kept() -> None:
    @statement_cache
    def found(_statement: sa.Select[Any]) -> int:
        asked.append(_statement)
        clear_mapper_caches()
        assert len(asked) < 10  # it has an end
        return len(asked)

    asked.clear()
    assert [found(of_key(1)), found(of_key(2))] == [2, 4]


def test_with_other_arguments_it_is_looked_at_again() -> None:
    assert (noted(of_key(1), "!"), noted(of_key(1), "?")) == ("Order!", "Order?")


def test_what_sqlalchemy_does_not_cache_is_looked_at_each_time() -> None:
    asked.clear()
    for _ in range(2):
        noted(sa.select(Order).where(Unknown() == 1))
    assert len(asked) == 2


def test_a_new_class_on_the_table_is_seen() -> None:
    class Base(DeclarativeBase):
        pass

    class Paper(Base):
        __tablename__ = "sc_paper"
        id: Mapped[int] = mapped_column(primary_key=True)

    table = Paper.__table__
    statement = sa.select(table).with_for_update()
    assert [one.root.class_ for one in adopted_by(statement).keys] == [Paper]

    class Second(Base):
        __table__ = table

    document(parts=())(Second)
    assert [one.root.class_ for one in adopted_by(statement).keys] == [Second]


def test_a_hint_is_of_the_alias_of_the_statement_itself() -> None:
    for alias in (aliased(Order), aliased(Order)):
        statement = sa.select(alias).with_for_update()
        found = locked_froms(statement)
        assert [*found.tables_on(SQLServerLocks.statements)] == [Order.__table__]
        assert [*froms_to_hint(statement)] == [sa.inspect(alias).selectable]


def test_a_hint_is_on_each_table_that_is_locked() -> None:
    joined = sa.select(Order).join(Order.lines)
    tables = {Order.__table__, Line.__table__}
    assert {*froms_to_hint(joined.with_for_update())} == tables
    assert [*froms_to_hint(joined.with_for_update(of=Order))] == [Order.__table__]


class Choice(sa.types.TypeDecorator[int]):
    """A type whose key has a list in it, which SQLAlchemy cannot look up in its cache either."""

    impl = sa.Integer
    cache_ok = True

    def __init__(self, values: list[int]) -> None:
        self.values = values
        super().__init__()


def test_a_key_that_cannot_be_looked_up_is_none() -> None:
    asked.clear()
    for _ in range(2):
        noted(sa.select(Order).add_columns(sa.literal(1, Choice([1, 2]))))
    assert len(asked) == 2
