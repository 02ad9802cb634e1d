"""Declared documents whose header, or whose parts, are mapped with inheritance."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship

from sa_doclock import document
from tests.integration.documents.models import OWNED, Base, key


@document
class Contract(Base):
    """Joined inheritance of the header and of its parts, and parts of a subclass of either."""

    __tablename__ = "dc_contract"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "contract"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    total: Mapped[int]
    clauses: Mapped[list[Clause]] = relationship(cascade=OWNED, order_by="Clause.id")


class Lease(Contract):
    __tablename__ = "dc_lease"
    __mapper_args__ = {"polymorphic_identity": "lease"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("dc_contract.id"), primary_key=True)
    rent: Mapped[int]
    rooms: Mapped[list[Room]] = relationship(cascade=OWNED, order_by="Room.id")


class Clause(Base):
    __tablename__ = "dc_clause"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "clause"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    contract_id: Mapped[int] = mapped_column(ForeignKey("dc_contract.id"))
    value: Mapped[int]


class Penalty(Clause):
    __tablename__ = "dc_penalty"
    __mapper_args__ = {"polymorphic_identity": "penalty"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("dc_clause.id"), primary_key=True)
    amount: Mapped[int]
    tiers: Mapped[list[Tier]] = relationship(cascade=OWNED, order_by="Tier.id")


class Tier(Base):
    __tablename__ = "dc_tier"
    id: Mapped[int] = key()
    penalty_id: Mapped[int] = mapped_column(ForeignKey("dc_penalty.id"))
    value: Mapped[int]


class Room(Base):
    __tablename__ = "dc_room"
    id: Mapped[int] = key()
    lease_id: Mapped[int] = mapped_column(ForeignKey("dc_lease.id"))
    value: Mapped[int]


@document
class Machine(Base):
    """Two subclasses whose parts have the same name, and parts of their own in turn."""

    __tablename__ = "dc_machine"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "machine"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    total: Mapped[int]


class Press(Machine):
    __mapper_args__ = {"polymorphic_identity": "press"}  # noqa: RUF012
    units: Mapped[list[Plate]] = relationship(cascade=OWNED, order_by="Plate.id")


class Drill(Machine):
    __mapper_args__ = {"polymorphic_identity": "drill"}  # noqa: RUF012
    units: Mapped[list[Bit]] = relationship(cascade=OWNED, order_by="Bit.id")


class Plate(Base):
    __tablename__ = "dc_plate"
    id: Mapped[int] = key()
    machine_id: Mapped[int] = mapped_column(ForeignKey("dc_machine.id"))
    value: Mapped[int]
    marks: Mapped[list[PlateMark]] = relationship(cascade=OWNED)


class Bit(Base):
    __tablename__ = "dc_bit"
    id: Mapped[int] = key()
    drill_id: Mapped[int] = mapped_column(ForeignKey("dc_machine.id"))
    value: Mapped[int]
    marks: Mapped[list[BitMark]] = relationship(cascade=OWNED)


class PlateMark(Base):
    __tablename__ = "dc_plate_mark"
    id: Mapped[int] = key()
    plate_id: Mapped[int] = mapped_column(ForeignKey("dc_plate.id"))
    value: Mapped[int]


class BitMark(Base):
    __tablename__ = "dc_bit_mark"
    id: Mapped[int] = key()
    bit_id: Mapped[int] = mapped_column(ForeignKey("dc_bit.id"))
    value: Mapped[int]
