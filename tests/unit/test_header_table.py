"""The header table for every kind of mapping, and the mappings without one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import MetaData, Table, inspect, select
from sqlalchemy.ext.declarative import ConcreteBase
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    aliased,
    configure_mappers,
    mapped_column,
    with_polymorphic,
)
from sqlalchemy.sql.selectable import Alias

from sa_doclock import LockNotSupported, document
from sa_doclock.adoption.for_update import froms_to_hint, locked_froms
from sa_doclock.adoption.locked_headers import adopted_by
from sa_doclock.core.documents.mapping import (
    clear_mapper_caches,
    header_table,
    lockable_root,
    mapper_of,
    own_table,
    root_of,
    spans_rows,
    tables_of,
)
from sa_doclock.core.statements import statement_cache
from sa_doclock.core.statements.with_lock import selectin_options
from sa_doclock.dialects import schema_translation, translated_schema
from sa_doclock.dialects.mssql import SQLServerLocks
from tests.sql.models import Building, Journal, Project
from tests.support.models import (
    ColdStore,
    Contract,
    Depot,
    Fault,
    Invoice,
    Lease,
    Line,
    Order,
    Ticket,
    Voucher,
)
from tests.support.rows import rows
from tests.unit.mappings import Car, Circle, Joined, NightTaxi, Selected, Shape, Taxi, Vehicle

TABLES = {
    Order: "lk_order",
    Voucher: "lk_voucher",
    Invoice: "lk_invoice",
    Journal: "books.Journal of Group",
    Contract: "lk_contract",
    Lease: "lk_contract",
    Project: "shop_project",
    Building: "shop_project",
    Ticket: "lk_ticket",
    Fault: "lk_ticket",
    Depot: "lk_depot",
    ColdStore: "lk_cold_store",
    Vehicle: "vehicle",
    Car: "vehicle",
    Taxi: "vehicle",
    NightTaxi: "vehicle",
}


@rows(("entity", "name"), TABLES.items())
def test_the_header_is_the_table_of_the_root(entity: type[Any], name: str) -> None:
    table = header_table(entity)
    assert isinstance(table, Table)
    assert table.fullname == name
    assert own_table(mapper_of(entity)) is table
    assert table is root_of(mapper_of(entity)).local_table


@rows(("entity", "name"), TABLES.items())
def test_in_a_flat_alias_it_is_the_alias_of_that_table(entity: type[Any], name: str) -> None:
    table = header_table(aliased(entity, flat=True))
    assert isinstance(table, Alias)
    assert isinstance(table.element, Table)
    assert table.element.fullname == name


def test_an_alias_of_the_table_itself_will_do() -> None:
    alias = Order.__table__.alias("o")
    assert header_table(aliased(Order, alias)) is alias


def test_with_polymorphic_reads_the_tables_themselves() -> None:
    assert header_table(with_polymorphic(Contract, [Lease])) is Contract.__table__


@pytest.mark.parametrize("entity", [Shape, Circle, Joined, Selected])
def test_a_class_without_a_header_row_is_reported(entity: type[Any]) -> None:
    with pytest.raises(
        LockNotSupported, match=rf"{entity.__name__} is read from a (Join|Subquery)"
    ):
        header_table(entity)
    with pytest.raises(
        LockNotSupported, match=rf"{entity.__name__} is read from a (Join|Subquery)"
    ):
        lockable_root(mapper_of(entity))


def test_it_is_reported_before_the_mappers_are_configured_too() -> None:
    class Base(DeclarativeBase):
        pass

    class Animal(ConcreteBase, Base):
        __tablename__ = "animal"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Cat(Animal):
        __tablename__ = "cat"
        __mapper_args__ = {"polymorphic_identity": "cat", "concrete": True}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)

    # Configuring the mappers builds the UNION that a select reads, and not before.
    with pytest.raises(LockNotSupported, match="Animal is read from a Subquery"):
        lockable_root(mapper_of(Animal))


DERIVED: dict[str, Callable[[], Any]] = {
    "joined": lambda: aliased(Lease),
    "union": lambda: aliased(Shape),
    "subquery": lambda: aliased(Order, select(Order).subquery()),
    "cte": lambda: aliased(Order, select(Order).cte()),
    "polymorphic subquery": lambda: with_polymorphic(Contract, [Lease], aliased=True),
}


@pytest.mark.parametrize("alias", DERIVED.values(), ids=DERIVED)
def test_rows_of_a_derived_table_have_no_header(alias: Callable[[], Any]) -> None:
    configure_mappers()  # the union exists only now
    with pytest.raises(LockNotSupported, match=r"aliased as a subquery.*flat=True"):
        header_table(alias())


@pytest.mark.parametrize(
    ("entity", "names"),
    [
        (Order, ["lk_order"]),
        (Lease, ["lk_contract", "lk_lease"]),
        (NightTaxi, ["vehicle", "car", "taxi"]),
        (Project, ["shop_project", "shop_building"]),
        (ColdStore, ["lk_cold_store"]),
        (Fault, ["lk_ticket"]),
    ],
)
def test_the_tables_of_a_row(entity: type[Any], names: list[str]) -> None:
    assert [table.name for table in tables_of(entity)] == names
    assert spans_rows(inspect(entity)) is (len(names) > 1)


@pytest.mark.parametrize("entity", [Order(), "Order", None, 42, object, Order.__table__, [Order]])
def test_what_is_no_mapped_class_is_a_type_error(entity: Any) -> None:
    with pytest.raises(TypeError, match="entity must be a mapped class"):
        mapper_of(entity)


def test_what_is_found_out_about_an_alias_is_not_kept() -> None:
    alias = aliased(Order)
    alias_of_it = weakref.ref(inspect(alias))
    header_table(alias)
    spans_rows(alias)
    selectin_options(alias, frozenset())
    del alias
    gc.collect()
    assert alias_of_it() is None


# --------------------------------------------------------------------------------------------------
# The schema of a table, as ``schema_translate_map`` translates it.

MAP = "schema_translate_map"
PLAIN = Table("plain", MetaData())
SALES = Table("sales_order", MetaData(), schema="sales")


def test_without_a_map_there_is_no_option_and_the_schema_stays() -> None:
    assert schema_translation() == {}
    assert schema_translation({}, {"stream_results": True}) == {}
    assert translated_schema(PLAIN, {}) is None
    assert translated_schema(SALES, {}, {}) == "sales"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([{MAP: {"sales": "eu"}}], "eu"),
        ([{MAP: {None: "eu"}}], "sales"),
        ([{MAP: {"sales": None}}], None),
        ([{MAP: {"sales": "eu"}}, {}], "eu"),
        ([{MAP: {"sales": "eu"}}, {MAP: {"sales": "us"}}], "us"),
        ([{MAP: {"sales": "eu"}}, {MAP: {}}], "sales"),
        ([{MAP: {"sales": "eu"}}, {MAP: None}], "sales"),
    ],
)
def test_the_last_map_is_in_force(options: list[dict[str, object]], expected: str | None) -> None:
    assert translated_schema(SALES, *options) == expected
    assert schema_translation(*options) == {MAP: ([o[MAP] for o in options if MAP in o])[-1]}


# --------------------------------------------------------------------------------------------------
# The cache of facts about a statement: shared by statements with the same SQL, and no others.

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
    """This happens if the function itself is the first to configure the mappers of another registry."""
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
        assert len(asked) < 10  # stops a loop that does not end
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
    """A type whose cache key contains a list, so SQLAlchemy cannot look it up in its own cache either."""

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
