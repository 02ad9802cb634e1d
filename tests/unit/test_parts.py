"""The objects that belong to a document: one-to-many relationships, and how they refer back."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    Table,
    func,
    inspect,
    literal_column,
    select,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    column_property,
    mapped_column,
    query_expression,
    relationship,
    with_polymorphic,
)

from sa_doclock import LockingSession, document
from sa_doclock.core.documents import mapper_of as mapper_of_spans_rows
from sa_doclock.core.documents import spans_rows
from sa_doclock.core.documents.declare import parts_of
from sa_doclock.core.documents.mapping import mapper_of
from sa_doclock.core.documents.owners import UNKNOWN, HeaderResolver
from tests.support.models import Clause, Contract, Entry, Invoice, Line, Order, Voucher
from tests.support.rows import rows
from tests.unit.mappings import Vehicle, Wheel


class Base(DeclarativeBase):
    pass


labels = Table(
    "node_label",
    Base.metadata,
    Column("node_id", ForeignKey("node.id"), primary_key=True),
    Column("label_id", ForeignKey("label.id"), primary_key=True),
)


class Label(Base):
    __tablename__ = "label"
    id: Mapped[int] = mapped_column(primary_key=True)


class Node(Base):
    """Its parts are nodes too, and notes that use another key; labels are not parts."""

    __tablename__ = "node"
    id: Mapped[int] = mapped_column(primary_key=True)
    code: Mapped[str] = mapped_column(unique=True)
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("node.id"))
    children: Mapped[list[Node]] = relationship(back_populates="parent")
    parent: Mapped[Node | None] = relationship(back_populates="children", remote_side="Node.id")
    notes: Mapped[list[Note]] = relationship()
    labels: Mapped[list[Label]] = relationship(secondary=labels)


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    node_code: Mapped[str] = mapped_column(ForeignKey("node.code"))


@pytest.mark.parametrize(
    ("root", "parts"),
    [
        (Order, [("lines", Line, ("order_id",), ("order",))]),
        (Voucher, [("entries", Entry, ("year", "number"), ())]),
        (Contract, [("clauses", Clause, ("contract_id",), ())]),
        (Invoice, []),
    ],
)
def test_the_parts_and_the_foreign_key_in_the_order_of_the_headers(
    root: type[Any], parts: list[Any]
) -> None:
    found = parts_of(mapper_of(root))
    assert [(p.path, p.detail.class_, p.foreign_key, p.backrefs) for p in found] == parts


def test_parts_of_subclasses_are_found_from_the_root() -> None:
    (part,) = parts_of(mapper_of(Vehicle))
    assert (part.name, part.detail) == ("wheels", mapper_of(Wheel))


def test_parts_of_a_subclass_that_is_mapped_later_are_found() -> None:
    class Later(DeclarativeBase):
        pass

    class Root(Later):
        __tablename__ = "root"
        __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    assert parts_of(mapper_of(Root)) == ()

    class Leaf(Later):
        __tablename__ = "leaf"
        id: Mapped[int] = mapped_column(primary_key=True)
        root_id: Mapped[int] = mapped_column(ForeignKey("root.id"))

    class Late(Root):
        __mapper_args__ = {"polymorphic_identity": "late"}  # noqa: RUF012
        leaves = relationship(Leaf)

    assert [part.name for part in parts_of(mapper_of(Root))] == ["leaves"]


def test_a_tree_has_itself_as_parts_and_many_to_many_is_none() -> None:
    parts = {part.name: part for part in parts_of(mapper_of(Node))}
    assert set(parts) == {"children", "notes"}
    children = parts["children"]
    assert (children.detail, children.foreign_key) == (mapper_of(Node), ("parent_id",))
    assert (children.backrefs, children.recursive) == (("parent",), False)


def test_a_part_that_refers_to_another_key_has_no_foreign_key_to_the_header() -> None:
    parts = {part.name: part for part in parts_of(mapper_of(Node))}
    assert parts["notes"].foreign_key is None


def test_the_header_of_a_loaded_detail_is_known_without_a_select(
    session: LockingSession, sent: list[str]
) -> None:
    line, entry = session.get_one(Line, 3), session.get_one(Entry, 2)
    sent.clear()

    def headers(root: type[Any], detail: object) -> list[tuple[Any, ...]]:
        return list(HeaderResolver(session, mapper_of(root), ask=False).headers(inspect(detail)))

    assert headers(Order, line) == [(2,)]
    assert headers(Voucher, entry) == [(2024, 2)]
    session.expire(line)
    assert headers(Order, line) == [UNKNOWN]
    assert sent == []


class Shop(DeclarativeBase):
    pass


class Sale(Shop):
    __tablename__ = "sale"
    id: Mapped[int] = mapped_column(primary_key=True)
    region: Mapped[int]
    items: Mapped[list[Item]] = relationship()


class Item(Shop):
    """Mapped without one of the two columns that refer to its sale."""

    __table__ = Table(
        "item",
        Shop.metadata,
        Column("id", Integer, primary_key=True),
        Column("sale_id", Integer),
        Column("region", Integer),
        ForeignKeyConstraint(["sale_id", "region"], ["sale.id", "sale.region"]),
    )
    __mapper_args__ = {"exclude_properties": ["region"]}  # noqa: RUF012  # SQLAlchemy declares it


def test_a_foreign_key_that_is_mapped_in_part_does_not_name_the_owner() -> None:
    (part,) = parts_of(mapper_of(Sale))
    assert (part.foreign_key, part.reference) == (None, (("sale_id", "id"),))


@document(parts=("children", "papers"))
class Box(Shop):
    __tablename__ = "box"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    papers: Mapped[list[Paper]] = relationship()
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "box"}  # noqa: RUF012


class Crate(Box):
    """Only these boxes contain boxes."""

    crate_id: Mapped[int | None] = mapped_column(ForeignKey("box.id"))
    children: Mapped[list[Crate]] = relationship(remote_side="Crate.crate_id")
    __mapper_args__ = {"polymorphic_identity": "crate"}  # noqa: RUF012


class Paper(Shop):
    __tablename__ = "paper"
    id: Mapped[int] = mapped_column(primary_key=True)
    box_id: Mapped[int] = mapped_column(ForeignKey("box.id"))


def test_the_header_of_a_row_that_is_not_loaded_is_unknown() -> None:
    """Only the row of a paper's box knows whether that box is inside another."""
    with Session() as session:
        session.add(paper := Paper(id=1, box_id=2))
        headers = HeaderResolver(session, mapper_of(Box), ask=False).headers(inspect(paper))
    assert headers == {UNKNOWN}


# --------------------------------------------------------------------------------------------------
# A row made up of several rows is read once its header is locked.


class Plain(Base):
    __tablename__ = "spans_plain"
    id: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column()
    double = column_property(size * 2)


class Joined(Plain):
    __tablename__ = "spans_joined"
    id: Mapped[int] = mapped_column(ForeignKey(Plain.id), primary_key=True)


class Counted(Base):
    __tablename__ = "spans_counted"
    id: Mapped[int] = mapped_column(primary_key=True)
    plain = column_property(select(func.count(Plain.id)).scalar_subquery())


class CountedLater(Base):
    __tablename__ = "spans_later"
    id: Mapped[int] = mapped_column(primary_key=True)
    plain = column_property(select(func.count(Plain.id)).scalar_subquery(), deferred=True)


class CountedByDefault(Base):
    __tablename__ = "spans_default"
    id: Mapped[int] = mapped_column(primary_key=True)
    plain: Mapped[int] = query_expression(select(func.count(Plain.id)).scalar_subquery())


class CountedAsText(Base):
    __tablename__ = "spans_text"
    id: Mapped[int] = mapped_column(primary_key=True)
    plain = column_property(literal_column("(SELECT count(*) FROM spans_plain)", Integer))


class KindBySubquery(Base):
    __tablename__ = "spans_kind"
    id: Mapped[int] = mapped_column(primary_key=True)
    __mapper_args__ = {  # noqa: RUF012
        "polymorphic_on": select(func.count(Plain.id)).scalar_subquery(),
        "polymorphic_identity": 0,
    }


class WithSubclasses(Base):
    __tablename__ = "spans_base"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": 0}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]


class CountedInSubclass(WithSubclasses):
    __mapper_args__ = {"polymorphic_identity": 1}  # noqa: RUF012
    plain = column_property(select(func.count(Plain.id)).scalar_subquery())


class WithInlineSubclass(Base):
    __tablename__ = "spans_inline"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": 0}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]


class CountedInline(WithInlineSubclass):
    __mapper_args__ = {"polymorphic_identity": 1, "polymorphic_load": "inline"}  # noqa: RUF012
    plain = column_property(select(func.count(Plain.id)).scalar_subquery())


class WithJoinedSubclass(Base):
    __tablename__ = "spans_outer"
    __mapper_args__ = {  # noqa: RUF012
        "polymorphic_on": "kind",
        "polymorphic_identity": 0,
        "with_polymorphic": "*",
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]


class JoinedInline(WithJoinedSubclass):
    __tablename__ = "spans_outer_joined"
    __mapper_args__ = {"polymorphic_identity": 1}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey(WithJoinedSubclass.id), primary_key=True)


class GivenByOption(Base):
    __tablename__ = "spans_option"
    id: Mapped[int] = mapped_column(primary_key=True)
    given: Mapped[int] = query_expression()


@rows(
    ("entity", "expected", "undeferred"),
    [
        (Plain, False, False),
        (Joined, True, True),
        (Counted, True, True),
        (CountedLater, False, True),
        (GivenByOption, False, True),
        (CountedByDefault, True, True),
        (CountedAsText, True, True),
        (KindBySubquery, True, True),
        (WithSubclasses, False, False),
        (CountedInSubclass, True, True),
        (with_polymorphic(WithSubclasses, "*"), True, True),
        (aliased(WithSubclasses), False, False),
        (WithInlineSubclass, True, True),
        (aliased(WithInlineSubclass), True, True),
        (WithJoinedSubclass, True, True),
        (aliased(WithJoinedSubclass, flat=True), True, True),
    ],
)
def test_which_rows_are_made_of_several(entity: Any, expected: bool, undeferred: bool) -> None:
    assert spans_rows(entity) is expected
    assert spans_rows(entity, undeferred=True) is undeferred
    if isinstance(entity, type):
        assert spans_rows(mapper_of_spans_rows(entity)) is expected
