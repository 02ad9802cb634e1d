"""Mappings that are rare, or that have no header row to lock."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Table, select
from sqlalchemy.ext.declarative import ConcreteBase
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column, relationship


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
    """Concrete, where a select of the root is a UNION of all tables."""

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
