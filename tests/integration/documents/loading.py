"""Documents whose parts do not load on first use."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import (
    DynamicMapped,
    Mapped,
    WriteOnlyMapped,
    mapped_column,
    relationship,
)

from sa_doclock import document
from tests.integration.documents.models import OWNED, Base, key


@document(parts=("items", "items.notes"))
class Bill(Base):
    """Nothing loads implicitly: lazy="raise" at both levels."""

    __tablename__ = "dc_bill"
    id: Mapped[int] = key()
    total: Mapped[int]
    items: Mapped[list[Item]] = relationship(lazy="raise", cascade=OWNED, order_by="Item.id")


class Item(Base):
    __tablename__ = "dc_item"
    id: Mapped[int] = key()
    bill_id: Mapped[int] = mapped_column(ForeignKey("dc_bill.id"))
    value: Mapped[int]
    notes: Mapped[list[ItemNote]] = relationship(
        lazy="raise_on_sql", cascade=OWNED, order_by="ItemNote.id"
    )


class ItemNote(Base):
    __tablename__ = "dc_item_note"
    id: Mapped[int] = key()
    item_id: Mapped[int] = mapped_column(ForeignKey("dc_item.id"))
    value: Mapped[int]


@document(parts=("pieces", "pieces.hints"))
class Puzzle(Base):
    """Only a subclass of a part has this part, which does not load implicitly."""

    __tablename__ = "dc_puzzle"
    id: Mapped[int] = key()
    total: Mapped[int]
    pieces: Mapped[list[Piece]] = relationship(cascade=OWNED, order_by="Piece.id")


class Piece(Base):
    __tablename__ = "dc_piece"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "piece"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    puzzle_id: Mapped[int] = mapped_column(ForeignKey("dc_puzzle.id"))
    value: Mapped[int]


class Corner(Piece):
    __mapper_args__ = {"polymorphic_identity": "corner"}  # noqa: RUF012
    hints: Mapped[list[Hint]] = relationship(lazy="raise", cascade=OWNED, order_by="Hint.id")


class Hint(Base):
    __tablename__ = "dc_hint"
    id: Mapped[int] = key()
    piece_id: Mapped[int] = mapped_column(ForeignKey("dc_piece.id"))
    value: Mapped[int]


@document(parts=("scans", "events"))
class Parcel(Base):
    """Collections too large to load."""

    __tablename__ = "dc_parcel"
    id: Mapped[int] = key()
    total: Mapped[int]
    scans: WriteOnlyMapped[Scan] = relationship(cascade=OWNED, order_by="Scan.id")
    events: DynamicMapped[Event] = relationship(cascade=OWNED, order_by="Event.id")


class Scan(Base):
    __tablename__ = "dc_scan"
    id: Mapped[int] = key()
    parcel_id: Mapped[int] = mapped_column(ForeignKey("dc_parcel.id"))
    value: Mapped[int]


class Event(Base):
    __tablename__ = "dc_event"
    id: Mapped[int] = key()
    parcel_id: Mapped[int] = mapped_column(ForeignKey("dc_parcel.id"))
    value: Mapped[int]


@document
class Basket(Base):
    """Loaded with the header: the first level by a second SELECT, the next by a JOIN."""

    __tablename__ = "dc_basket"
    id: Mapped[int] = key()
    total: Mapped[int]
    fruits: Mapped[list[Fruit]] = relationship(lazy="selectin", cascade=OWNED, order_by="Fruit.id")
    nuts: Mapped[list[Nut]] = relationship(lazy="joined", cascade=OWNED, order_by="Nut.id")


class Fruit(Base):
    __tablename__ = "dc_fruit"
    id: Mapped[int] = key()
    basket_id: Mapped[int] = mapped_column(ForeignKey("dc_basket.id"))
    value: Mapped[int]
    seeds: Mapped[list[Seed]] = relationship(lazy="joined", cascade=OWNED, order_by="Seed.id")


class Seed(Base):
    __tablename__ = "dc_seed"
    id: Mapped[int] = key()
    fruit_id: Mapped[int] = mapped_column(ForeignKey("dc_fruit.id"))
    value: Mapped[int]


class Nut(Base):
    __tablename__ = "dc_nut"
    id: Mapped[int] = key()
    basket_id: Mapped[int] = mapped_column(ForeignKey("dc_basket.id"))
    value: Mapped[int]


class Folder(Base):
    """Not declared: its parts are its one-to-many collections, one level deep."""

    __tablename__ = "dc_folder"
    id: Mapped[int] = key()
    total: Mapped[int]
    sheets: Mapped[list[Sheet]] = relationship(order_by="Sheet.id")


class Sheet(Base):
    __tablename__ = "dc_sheet"
    id: Mapped[int] = key()
    folder_id: Mapped[int] = mapped_column(ForeignKey("dc_folder.id"))
    value: Mapped[int]
    stamps: Mapped[list[Stamp]] = relationship(order_by="Stamp.id")


class Stamp(Base):
    __tablename__ = "dc_stamp"
    id: Mapped[int] = key()
    sheet_id: Mapped[int] = mapped_column(ForeignKey("dc_sheet.id"))
    value: Mapped[int]


class Client(Base):
    """Not declared; its one-to-many collection contains documents, not parts."""

    __tablename__ = "dc_client"
    id: Mapped[int] = key()
    total: Mapped[int]
    invoices: Mapped[list[Invoice]] = relationship(order_by="Invoice.id")


@document(parts=())
class Invoice(Base):
    __tablename__ = "dc_invoice"
    id: Mapped[int] = key()
    client_id: Mapped[int] = mapped_column(ForeignKey("dc_client.id"))
    total: Mapped[int]
