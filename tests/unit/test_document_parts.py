"""The parts of a document: by composition, in a hierarchy, and nested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, String, Table, select
from sqlalchemy.orm import configure_mappers, relationship

from sa_doclock import document
from sa_doclock.core.documents.declare import (
    document_root,
    has_nested_headers,
    is_declared,
    parts_of,
    parts_with_detail,
)
from sa_doclock.core.documents.mapping import mapper_of
from sa_doclock.core.documents.parts import takes
from sa_doclock.guard.targets import targets_of_class
from tests.support.rows import rows
from tests.unit.mappings import COMPOSITION, World, paths, refers

pytestmark = pytest.mark.usefixtures("frozen_heap")


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World()) as world:
        yield world


def found(entity: Any) -> dict[str, Any]:
    return {part.path: part for part in parts_of(mapper_of(entity))}


def test_composition_is_what_has_delete_orphan(world: World) -> None:
    owned = relationship("Line", cascade=COMPOSITION)
    order = world.map(
        "Order", refers("customer"), declare=document, lines=owned,
        notes=relationship("Note", cascade="all, delete"),
        customer=relationship("Customer"),
    )  # fmt: skip
    world.map("Line", refers("order"))
    world.map("Note", refers("order"))
    world.map("Customer")
    assert paths(order) == ["lines"]


def test_composition_ends_below_what_is_none(world: World) -> None:
    order = world.map("Order", declare=document, notes=relationship("Note"))
    world.map("Note", refers("order"), marks=relationship("Mark", cascade=COMPOSITION))
    world.map("Mark", refers("note"))
    assert paths(order) == []


def test_composition_goes_as_deep_as_it_is(world: World) -> None:
    names = ["Order", "Line", "Tax", "Rate", "Step"]
    for name, below in zip(names, [*names[1:], None], strict=True):
        above = names[names.index(name) - 1].lower()
        columns = [] if name == "Order" else [refers(above)]
        more = {} if below is None else {"of": relationship(below, cascade=COMPOSITION)}
        world.map(name, *columns, declare=document if name == "Order" else None, **more)
    assert paths(world.made[0]) == ["of", "of.of", "of.of.of", "of.of.of.of"]


def test_composition_stops_at_another_document(world: World) -> None:
    order = world.map("Order", declare=document, lines=relationship("Line", cascade=COMPOSITION))
    owned = relationship("Parcel", cascade=COMPOSITION)
    line = world.map("Line", refers("order"), parcels=owned)
    parcel = world.map(
        "Parcel", refers("line"), declare=document,
        labels=relationship("Label", cascade=COMPOSITION),
    )  # fmt: skip
    label = world.map("Label", refers("parcel"))
    assert (paths(order), paths(parcel)) == (["lines"], ["labels"])
    assert document_root(mapper_of(line)) is mapper_of(order)
    assert document_root(mapper_of(label)) is mapper_of(parcel)


def subclass(world: World, name: str, base: Any, *, table: bool = True, **how: Any) -> Any:
    entity: Any = type(name, (base,), {})
    own = None
    if table:
        key: Column[int] = Column("id", ForeignKey(f"{base.__name__.lower()}.id"), primary_key=True)
        own = Table(name.lower(), world.registry.metadata, key)
    how.setdefault("polymorphic_identity", name)
    world.registry.map_imperatively(entity, own, inherits=base, **how)
    world.made.append(entity)
    return entity


@pytest.mark.parametrize("table", [True, False])
def test_a_declaration_holds_for_subclasses(world: World, *, table: bool) -> None:
    order = world.order("lines")
    rush = subclass(world, "Rush", order, table=table)
    assert is_declared(mapper_of(rush))
    assert document_root(mapper_of(rush)) is mapper_of(order)
    assert paths(rush) == ["lines"]


@pytest.mark.parametrize("table", [True, False])
def test_a_subclass_adds_parts(world: World, *, table: bool) -> None:
    order = world.order("lines")
    rush = subclass(world, "Rush", order, table=table, properties={"stops": relationship("Stop")})
    stop = world.map("Stop", refers("rush" if table else "order"))
    document(parts=("stops",))(rush)
    assert paths(order) == ["lines", "stops"]
    assert found(order)["stops"].owner is mapper_of(rush)
    assert document_root(mapper_of(stop)) is mapper_of(order)


def test_composition_of_a_subclass_belongs_to_the_document(world: World) -> None:
    order = world.order()
    stops = relationship("Stop", cascade=COMPOSITION)
    subclass(world, "Rush", order, properties={"stops": stops})
    world.map("Stop", refers("rush"))
    assert set(paths(order)) == {"lines", "lines.taxes", "stops"}


def test_only_the_subclass_is_a_document(world: World) -> None:
    paper = world.map("Paper")
    pages = relationship("Page", cascade=COMPOSITION)
    letter = subclass(world, "Letter", paper, properties={"pages": pages})
    page = world.map("Page", refers("letter"))
    document(letter)
    assert (is_declared(mapper_of(letter)), is_declared(mapper_of(paper))) == (True, False)
    assert paths(letter) == ["pages"]
    assert document_root(mapper_of(page)) is mapper_of(paper)
    assert document_root(mapper_of(paper)) is None


def test_a_concrete_subclass_inherits_no_declaration(world: World) -> None:
    order = world.map("Order", declare=document)
    archived = concrete(world, order)
    assert not is_declared(mapper_of(archived))
    assert document_root(mapper_of(archived)) is None


def concrete(world: World, entity: Any, **properties: Any) -> Any:
    """Map ``Archived``, a concrete subclass, with these relationships."""
    archived: Any = type("Archived", (entity,), {})
    table = Table("archived", world.registry.metadata, Column("id", Integer, primary_key=True))
    world.registry.map_imperatively(
        archived, table, inherits=entity, concrete=True, properties=properties
    )
    world.made.append(archived)
    return archived


def test_a_concrete_subclass_is_a_document_of_its_own(world: World) -> None:
    order = world.order()
    archived = concrete(world, order, papers=relationship("Paper", cascade=COMPOSITION))
    paper = world.map("Paper", refers("archived"))
    document(archived)
    assert set(paths(order)) == {"lines", "lines.taxes"}
    assert paths(archived) == ["papers"]
    assert document_root(mapper_of(paper)) is mapper_of(archived)


def test_parts_of_a_concrete_subclass_are_no_parts_where_nothing_is_declared(world: World) -> None:
    order = world.map("Order", lines=relationship("Line"))
    world.map("Line", refers("order"))
    archived = concrete(world, order, papers=relationship("Paper"))
    world.map("Paper", refers("archived"))
    assert (paths(order), paths(archived)) == (["lines"], ["papers"])


def test_a_statement_for_a_class_is_not_for_its_concrete_subclass(world: World) -> None:
    order = world.map("Order")
    archived = document(concrete(world, order))
    assert targets_of_class(mapper_of(order)) == ()
    assert [target.root for target in targets_of_class(mapper_of(archived))] == [
        mapper_of(archived)
    ]


def test_parts_on_a_subclass_of_a_part(world: World) -> None:
    order = world.order()
    line = world.made[1]
    hints = relationship("Hint", cascade=COMPOSITION)
    subclass(world, "Gift", line, properties={"hints": hints})
    world.map("Hint", refers("gift"))
    assert set(paths(order)) == {"lines", "lines.taxes", "lines.hints"}


def tree(world: World, name: str, *columns: Any, declare: Any = None, **more: Any) -> Any:
    table = name.lower()
    children = relationship(name, cascade=COMPOSITION, back_populates="parent")
    parent = relationship(name, back_populates="children", remote_side=f"{name}.id")
    return world.map(
        name, refers(table, "parent_id"), *columns,
        declare=declare, children=children, parent=parent, **more,
    )  # fmt: skip


def test_lines_of_lines(world: World) -> None:
    order = world.map("Order", declare=document, lines=relationship("Line", cascade=COMPOSITION))
    tree(world, "Line", refers("order"), taxes=relationship("Tax", cascade=COMPOSITION))
    world.map("Tax", refers("line"))
    assert paths(order) == ["lines", "lines.children", "lines.taxes"]
    assert [part.recursive for part in found(order).values()] == [False, True, False]
    assert not has_nested_headers(mapper_of(order))


def test_lines_of_lines_by_name(world: World) -> None:
    declare = document(parts=("lines", "lines.children"))
    order = world.map("Order", declare=declare, lines=relationship("Line"))
    line = tree(world, "Line", refers("order"))
    above = parts_with_detail(mapper_of(order), mapper_of(line))
    assert [part.path for part in above] == ["lines", "lines.children"]


@pytest.mark.parametrize("declare", [document, document(parts=("children",))])
def test_a_header_that_is_a_part_of_another(world: World, declare: Any) -> None:
    category = tree(world, "Category", declare=declare)
    assert paths(category) == ["children"]
    assert has_nested_headers(mapper_of(category))
    part = found(category)["children"]
    assert (part.foreign_key, part.backrefs, part.recursive) == (("parent_id",), ("parent",), True)


def test_one_to_one_and_many_to_many(world: World) -> None:
    both = Table(
        "both", world.registry.metadata,
        Column("order_id", ForeignKey("order.id")), Column("tag_id", ForeignKey("tag.id")),
    )  # fmt: skip
    order = world.map(
        "Order", refers("address"), declare=document(parts=("cover", "tags", "address")),
        cover=relationship("Cover", uselist=False, back_populates="order"),
        tags=relationship("Tag", secondary=both, back_populates="orders"),
        address=relationship("Address"),
    )  # fmt: skip
    world.map("Cover", refers("order"), order=relationship("Order", back_populates="cover"))
    tagged = relationship("Order", secondary=both, back_populates="tags")
    world.map("Tag", orders=tagged)
    world.map("Address")
    parts = {p.path: (p.foreign_key, p.backrefs) for p in parts_of(mapper_of(order))}
    assert parts == {
        "cover": (("order_id",), ("order",)),
        "tags": (None, ("orders",)),
        "address": (None, ()),
    }


def test_a_relationship_to_another_key(world: World) -> None:
    order = world.map(
        "Order", Column("code", String(9), unique=True), declare=document(parts=("lines",)),
        lines=relationship("Line"),
    )  # fmt: skip
    world.map("Line", refers("order", "order_code", key="code"))
    assert found(order)["lines"].foreign_key is None


def test_without_a_declaration_it_is_one_to_many_one_level_deep(world: World) -> None:
    order = world.map("Order", refers("customer"), lines=relationship("Line"))
    world.map("Line", refers("order"), taxes=relationship("Tax"))
    world.map("Tax", refers("line"))
    world.map("Customer")
    configure_mappers()
    assert paths(order) == ["lines"]


@rows("value, constant, may_be", [
    (1, 1, True), (2, 1, False), (None, 1, False), ("1", 1, True), (select(1), "order", True),
    ("ORDER ", "order", True), ("offer", "order", False), (None, "order", False),
])  # fmt: skip
def test_rows_with_another_constant_are_no_parts(value: Any, constant: Any, may_be: bool) -> None:
    assert takes([("kind", constant)], {"kind": value}) is may_be
    assert takes([("kind", constant)], {})


def test_a_many_to_many_leads_back_by_the_same_table_alone(world: World) -> None:
    links = Table("links", world.registry.metadata, refers("order"), refers("line"))
    others = relationship("Order", secondary=links)
    order = world.map("Order", declare=document, lines=relationship("Line", cascade=COMPOSITION))
    world.map("Line", refers("order"), others=others)
    assert found(order)["lines"].backrefs == ()
