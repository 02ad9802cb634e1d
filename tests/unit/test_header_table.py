"""The header table in every way to map it, and the mappings that have none."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Table, inspect, select
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

from sa_doclock import LockNotSupported
from sa_doclock.core.documents.mapping import (
    header_table,
    lockable_root,
    mapper_of,
    own_table,
    root_of,
    spans_rows,
    tables_of,
)
from sa_doclock.core.statements.with_lock import selectin_options
from tests.sql.models import Building, Journal, Project
from tests.support.models import (
    ColdStore,
    Contract,
    Depot,
    Fault,
    Invoice,
    Lease,
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

    # The UNION that a select reads is made when mappers are configured, and not before.
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
    configure_mappers()  # only then is the union there
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
