"""Declared documents with inheritance, and with every kind of relationship except the simplest."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship
from sqlalchemy.orm.collections import attribute_keyed_dict

from sa_doclock import document
from tests.integration.documents.models import OWNED, Base, key

# --------------------------------------------------------------------------------------------------
# Declared documents that map their header or parts with inheritance.


@document
class Contract(Base):
    """Joined inheritance of the header and of its parts; subclasses of both have parts."""

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
    """Two subclasses whose parts have the same name, and have parts themselves."""

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


# --------------------------------------------------------------------------------------------------
# Declared documents with every kind of relationship except the plain one.

album_tag = sa.Table(
    "dc_album_tag",
    Base.metadata,
    sa.Column("album_id", ForeignKey("dc_album.id"), primary_key=True),
    sa.Column("tag_id", ForeignKey("dc_tag.id"), primary_key=True),
    sa.Column("position", sa.Integer),
)

track_badge = sa.Table(
    "dc_track_badge",
    Base.metadata,
    sa.Column("track_id", ForeignKey("dc_track.id"), primary_key=True),
    sa.Column("badge_id", ForeignKey("dc_badge.id"), primary_key=True),
    sa.Column("position", sa.Integer),
)

playlist_badge = sa.Table(
    "dc_playlist_badge",
    Base.metadata,
    sa.Column("playlist_id", ForeignKey("dc_playlist.id"), primary_key=True),
    sa.Column("badge_id", ForeignKey("dc_badge.id"), primary_key=True),
    sa.Column("position", sa.Integer),
)


@document(
    parts=(
        *("cover", "label", "tags", "marks", "texts", "codes", "open_issues"),
        "label.stickers",
    )
)
class Album(Base):
    """Every kind of relationship except the simplest."""

    __tablename__ = "dc_album"
    id: Mapped[int] = key()
    code: Mapped[str] = mapped_column(unique=True)
    total: Mapped[int]
    label_id: Mapped[int | None] = mapped_column(ForeignKey("dc_label.id"))
    cover: Mapped[Cover | None] = relationship(back_populates="album")
    label: Mapped[Label | None] = relationship()
    tags: Mapped[list[Tag]] = relationship(secondary=album_tag, order_by=album_tag.c.position)
    marks: Mapped[set[Mark]] = relationship()
    texts: Mapped[dict[str, Text]] = relationship(collection_class=attribute_keyed_dict("language"))
    codes: Mapped[list[Code]] = relationship(order_by="Code.id")
    open_issues: Mapped[list[Issue]] = relationship(
        primaryjoin="and_(Album.id == Issue.album_id, Issue.state == 'open')", order_by="Issue.id"
    )


class Cover(Base):
    __tablename__ = "dc_cover"
    id: Mapped[int] = key()
    album_id: Mapped[int] = mapped_column(ForeignKey("dc_album.id"))
    value: Mapped[int]
    album: Mapped[Album] = relationship(back_populates="cover")


class Label(Base):
    __tablename__ = "dc_label"
    id: Mapped[int] = key()
    value: Mapped[int]
    stickers: Mapped[list[Sticker]] = relationship(order_by="Sticker.id")


class Sticker(Base):
    __tablename__ = "dc_sticker"
    id: Mapped[int] = key()
    label_id: Mapped[int] = mapped_column(ForeignKey("dc_label.id"))
    value: Mapped[int]


class Tag(Base):
    __tablename__ = "dc_tag"
    id: Mapped[int] = key()
    value: Mapped[int]


class Mark(Base):
    __tablename__ = "dc_mark"
    id: Mapped[int] = key()
    album_id: Mapped[int] = mapped_column(ForeignKey("dc_album.id"))
    value: Mapped[int]


class Text(Base):
    __tablename__ = "dc_text"
    id: Mapped[int] = key()
    album_id: Mapped[int] = mapped_column(ForeignKey("dc_album.id"))
    language: Mapped[str]
    value: Mapped[int]


class Code(Base):
    __tablename__ = "dc_code"
    id: Mapped[int] = key()
    album_code: Mapped[str] = mapped_column(ForeignKey("dc_album.code"))
    value: Mapped[int]


class Issue(Base):
    __tablename__ = "dc_issue"
    id: Mapped[int] = key()
    album_id: Mapped[int] = mapped_column(ForeignKey("dc_album.id"))
    state: Mapped[str]
    value: Mapped[int]


@document(parts=("tracks.badges", "top_badges"))
class Playlist(Base):
    """Many-to-many below a part, and with a condition; both ordered by the association."""

    __tablename__ = "dc_playlist"
    id: Mapped[int] = key()
    total: Mapped[int]
    tracks: Mapped[list[Track]] = relationship(order_by="Track.id")
    top_badges: Mapped[list[Badge]] = relationship(
        secondary=playlist_badge,
        primaryjoin=lambda: sa.and_(
            Playlist.id == playlist_badge.c.playlist_id, playlist_badge.c.position > 1
        ),
        order_by=playlist_badge.c.position.desc(),
    )


class Track(Base):
    __tablename__ = "dc_track"
    id: Mapped[int] = key()
    playlist_id: Mapped[int] = mapped_column(ForeignKey("dc_playlist.id"))
    value: Mapped[int]
    badges: Mapped[list[Badge]] = relationship(
        secondary=track_badge, order_by=track_badge.c.position
    )


class Badge(Base):
    __tablename__ = "dc_badge"
    id: Mapped[int] = key()
    value: Mapped[int]
