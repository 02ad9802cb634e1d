"""Mappings that are rare, wrongly declared, or without a header row to lock."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, ForeignKey, Integer, Table, select
from sqlalchemy.ext.declarative import ConcreteBase
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    column_property,
    configure_mappers,
    mapped_column,
    registry,
    relationship,
)

from sa_doclock import document
from sa_doclock.core.documents.declare import parts_of
from sa_doclock.core.documents.mapping import mapper_of, root_of

# --------------------------------------------------------------------------------------------------
# Rare mappings, and mappings without a header row to lock.


class Base(DeclarativeBase):
    pass


class Vehicle(Base):
    """Joined inheritance in three levels, with a part on a subclass; the last one is single."""

    __tablename__ = "vehicle"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "vehicle"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]


class Car(Vehicle):
    __tablename__ = "car"
    __mapper_args__ = {"polymorphic_identity": "car"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("vehicle.id"), primary_key=True)
    doors: Mapped[int]
    wheels: Mapped[list[Wheel]] = relationship()


class Taxi(Car):
    __tablename__ = "taxi"
    __mapper_args__ = {"polymorphic_identity": "taxi"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("car.id"), primary_key=True)
    licence: Mapped[str]


class NightTaxi(Taxi):
    __mapper_args__ = {"polymorphic_identity": "night"}  # noqa: RUF012


class Wheel(Base):
    __tablename__ = "wheel"
    id: Mapped[int] = mapped_column(primary_key=True)
    car_id: Mapped[int] = mapped_column(ForeignKey("car.id"))


class Shape(ConcreteBase, Base):
    """Concrete inheritance: a select of the root is a UNION of all tables."""

    __tablename__ = "shape"
    __mapper_args__ = {"polymorphic_identity": "shape", "concrete": True}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)


class Circle(Shape):
    __tablename__ = "circle"
    __mapper_args__ = {"polymorphic_identity": "circle", "concrete": True}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    radius: Mapped[int]


left = Table(
    "left_half", Base.metadata, Column("id", ForeignKey("right_half.id"), primary_key=True)
)
right = Table("right_half", Base.metadata, Column("id", ForeignKey("vehicle.id"), primary_key=True))


class Joined(Base):
    """Mapped to a JOIN."""

    __table__ = left.join(right)
    id = column_property(left.c.id, right.c.id)


class Selected(Base):
    """Mapped to a subquery."""

    __table__ = select(left.c.id).where(left.c.id > 0).subquery("selected")
    __mapper_args__ = {"primary_key": [__table__.c.id]}  # noqa: RUF012


# --------------------------------------------------------------------------------------------------
# Classes that single tests map for themselves, some declared incorrectly.

COMPOSITION = "all, delete-orphan"


class World:
    """Provide a separate registry, disposed of after the test."""

    def __init__(self) -> None:
        self.registry = registry()
        self.made: list[type[Any]] = []  # deleting a class deletes its declaration

    def map(
        self,
        name: str,
        *columns: Column[Any],
        declare: Callable[[Any], Any] | None = None,
        **properties: Any,
    ) -> Any:
        """Map a class with a key, these columns, and these relationships, imperatively."""
        key = Column("id", Integer, primary_key=True)
        table = Table(name.lower(), self.registry.metadata, key, *columns)
        entity: Any = type(name, (), {})
        if declare is not None:
            entity = declare(entity)
        self.registry.map_imperatively(entity, table, properties=properties)
        self.made.append(entity)
        return entity

    def order(self, *parts: str, **more: Any) -> Any:
        """Map Order, Line and Tax, and declare these parts of an order. Without parts, leave Order bare."""
        declare = document(parts=parts) if parts else document
        order = self.map(
            "Order",
            refers("customer"),
            declare=declare,
            lines=relationship("Line", back_populates="order", cascade=COMPOSITION),
            customer=relationship("Customer"),
            **more,
        )
        self.map(
            "Line",
            refers("order"),
            order=relationship("Order", back_populates="lines"),
            taxes=relationship("Tax", cascade=COMPOSITION),
        )
        self.map("Tax", refers("line"))
        self.map("Customer")
        return order

    def close(self) -> None:
        self.registry.dispose()
        self.made.clear()
        gc.collect()
        configure_mappers()  # raises if anything leaked


def refers(table: str, name: str | None = None, *, key: str = "id") -> Column[Any]:
    """Make the foreign key column ``<table>_id``."""
    return Column(name or f"{table}_id", ForeignKey(f"{table}.{key}"))


def paths(entity: Any) -> list[str]:
    """Return the paths of all parts, as the library resolved the declaration."""
    return [part.path for part in parts_of(root_of(mapper_of(entity)))]
