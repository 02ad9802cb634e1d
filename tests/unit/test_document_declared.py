"""@document on every kind of mapping, applied before and after mapping."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, Table
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    configure_mappers,
    mapped_column,
    registry,
    relationship,
)

from sa_doclock import document
from sa_doclock.core.documents.declare import declares, document_root, is_declared
from sa_doclock.core.documents.mapping import mapper_of
from tests.unit.mappings import COMPOSITION, World, paths, refers

pytestmark = pytest.mark.usefixtures("frozen_heap")


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World()) as world:
        yield world


def test_without_arguments_it_returns_the_class(world: World) -> None:
    order = world.order()
    assert isinstance(order, type)
    assert paths(order) == ["lines", "lines.taxes"]


def test_with_parts_it_is_what_they_say(world: World) -> None:
    assert paths(world.order("lines")) == ["lines"]


@pytest.mark.parametrize("parts", [["lines"], ("lines",), {"lines": 1}, iter(["lines"])])
def test_parts_are_any_collection_of_names(world: World, parts: Any) -> None:
    order = document(parts=parts)(world.order())
    assert paths(order) == ["lines"]


def test_parts_can_be_none_at_all(world: World) -> None:
    order = document(parts=())(world.order())
    assert paths(order) == []
    assert is_declared(mapper_of(order))


def test_parts_none_is_the_composition(world: World) -> None:
    assert paths(document(parts=None)(world.order("lines"))) == ["lines", "lines.taxes"]


def test_a_nested_part_brings_the_part_that_it_is_in(world: World) -> None:
    assert paths(world.order("lines.taxes")) == ["lines", "lines.taxes"]


def test_a_part_that_is_named_twice_is_one(world: World) -> None:
    assert paths(world.order("lines", "lines.taxes", "lines")) == ["lines", "lines.taxes"]


def test_the_last_declaration_counts(world: World) -> None:
    order = world.order("lines")
    configure_mappers()
    document(parts=("lines.taxes",))(order)
    assert paths(order) == ["lines", "lines.taxes"]


def test_a_class_that_is_not_declared_is_none(world: World) -> None:
    world.order()
    customer = world.made[-1]
    assert not is_declared(mapper_of(customer))
    assert document_root(mapper_of(customer)) is None


def test_header_and_parts_know_their_document(world: World) -> None:
    order, line, tax, _ = [world.order(), *world.made[1:]]
    for entity in (order, line, tax):
        assert document_root(mapper_of(entity)) is mapper_of(order)


def test_declarative() -> None:
    class Base(DeclarativeBase):
        pass

    @document
    class Letter(Base):
        __tablename__ = "letter"
        id: Mapped[int] = mapped_column(primary_key=True)
        pages: Mapped[list[Any]] = relationship("Page", cascade=COMPOSITION)

    class Page(Base):
        __tablename__ = "page"
        id: Mapped[int] = mapped_column(primary_key=True)
        letter_id: Mapped[int] = mapped_column(ForeignKey("letter.id"))

    assert paths(Letter) == ["pages"]
    assert document_root(mapper_of(Page)) is mapper_of(Letter)
    Base.registry.dispose()


def test_mapped_as_dataclass_by_a_base() -> None:
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    @document(parts=("pages",))
    class Letter(Base):
        __tablename__ = "letter"
        id: Mapped[int] = mapped_column(primary_key=True)
        pages: Mapped[list[Any]] = relationship("Page", default_factory=list)

    class Page(Base):
        __tablename__ = "page"
        id: Mapped[int] = mapped_column(primary_key=True)
        letter_id: Mapped[int] = mapped_column(ForeignKey("letter.id"), default=None)

    assert paths(Letter) == ["pages"]
    assert Letter(id=1, pages=[]) == Letter(id=1, pages=[])  # a dataclass: not hashable
    Base.registry.dispose()


@pytest.mark.parametrize("order", ["above", "below"])
def test_mapped_as_dataclass_by_a_decorator(order: str) -> None:
    mappers = registry()

    class Letter:
        __tablename__ = "letter"
        id: Mapped[int] = mapped_column(primary_key=True)
        pages: Mapped[list[Any]] = relationship("Page", cascade=COMPOSITION, default_factory=list)

    class Page:
        __tablename__ = "page"
        id: Mapped[int] = mapped_column(primary_key=True)
        letter_id: Mapped[int] = mapped_column(ForeignKey("letter.id"), default=None)

    mappers.mapped_as_dataclass(Page)
    if order == "above":
        mapped = document(mappers.mapped_as_dataclass(Letter))
    else:
        mapped = mappers.mapped_as_dataclass(document(Letter))
    assert paths(mapped) == ["pages"]
    mappers.dispose()


@pytest.mark.parametrize("when", ["before", "after", "after the mappers were configured"])
def test_imperative(world: World, when: str) -> None:
    class Letter:
        pass

    table = Table("letter", world.registry.metadata, Column("id", Integer, primary_key=True))
    if when == "before":
        document(Letter)
    page = world.map("Page", refers("letter"))
    world.registry.map_imperatively(
        Letter, table, properties={"pages": relationship(page, cascade=COMPOSITION)}
    )
    if when == "after the mappers were configured":
        configure_mappers()
        assert document_root(mapper_of(page)) is None
    if when != "before":
        document(Letter)
    assert paths(Letter) == ["pages"]
    assert document_root(mapper_of(page)) is mapper_of(Letter)


def test_a_class_that_is_never_mapped_harms_nobody(world: World) -> None:
    @document(parts=("pages",))
    class Letter:
        pass

    assert paths(world.order()) == ["lines", "lines.taxes"]
    assert isinstance(Letter, type)


def test_a_declaration_goes_with_its_class(world: World) -> None:
    line = world.map("Line", refers("order"))
    world.map("Order", declare=document, lines=relationship(line, cascade=COMPOSITION))
    configure_mappers()
    assert document_root(mapper_of(line)) is not None
    world.registry.dispose()
    world.made.clear()
    del line
    gc.collect()
    configure_mappers()
    assert paths(World().order("lines")) == ["lines"]


@pytest.mark.parametrize("when", ["before", "after", "after the mappers were configured"])
@pytest.mark.parametrize("kind", ["abstract class", "mixin"])
def test_a_class_that_is_not_mapped_declares_those_below_it(kind: str, when: str) -> None:
    class Base(DeclarativeBase):
        pass

    class Mixin:
        pass

    class Abstract(Base):
        __abstract__ = True

    declared: type[Any] = Mixin if kind == "mixin" else Abstract
    bases = (Mixin, Base) if kind == "mixin" else (Abstract,)
    if when == "before":
        document(no_key=True)(declared)

    class Line(Base):
        __tablename__ = "lines"
        id: Mapped[int] = mapped_column(primary_key=True)
        letter_id: Mapped[int] = mapped_column(ForeignKey("letters.id"))

    letter: Any = type(
        "Letter",
        bases,
        {
            "__tablename__": "letters",
            "__annotations__": {"id": Mapped[int]},
            "id": mapped_column(primary_key=True),
            "lines": relationship(Line, cascade=COMPOSITION),
        },
    )
    other: Any = type(
        "Other", bases, {"__tablename__": "others", "id": Column(Integer, primary_key=True)}
    )
    if when == "after the mappers were configured":
        configure_mappers()
    if when != "before":
        document(no_key=True)(declared)
    configure_mappers()
    assert is_declared(mapper_of(letter))
    assert is_declared(mapper_of(other))
    assert paths(letter) == ["lines"]
    assert document_root(mapper_of(Line)) is mapper_of(letter)
    assert declares(mapper_of(letter), "no_key")
