"""Relationships beyond a foreign key of the detail."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, MetaData, Table
from sqlalchemy.orm import DeclarativeBase, mapped_column, relationship, selectinload

from sa_doclock import document
from tests.integration.mappings.mapped_document import (
    OWNED,
    MappedDocument,
    PlainHeader,
    detail_class,
    header_class,
    key,
    next_id,
    number,
)
from tests.integration.mappings.under_the_lock import UnderTheLock

METADATA = MetaData()


class Base(DeclarativeBase):
    metadata = METADATA


def _many_to_many() -> MappedDocument:
    """Tags that are not shared, so that each belongs to one document."""
    links = Table(
        "mp_links",
        METADATA,
        Column("album_id", ForeignKey("mp_album.id"), primary_key=True),
        Column("tag_id", ForeignKey("mp_tag.id"), primary_key=True),
    )

    class Tag(Base):
        __tablename__ = "mp_tag"
        id = key()
        value = number()

    tags = relationship(Tag, secondary=links, back_populates="albums")
    album = header_class(Base, "mp_album", tags=tags)
    Tag.albums = relationship(album, secondary=links, back_populates="tags")
    declared = document(parts=("tags",))(album)
    return MappedDocument(name="many-to-many", header=declared, line=Tag, lines="tags")


class _Association(MappedDocument):
    """The value is the tag's, reached through an association object."""

    def values(self, header: Any) -> list[int]:
        return [link.tag.value for link in header.links]

    def members(self, header: Any) -> list[Any]:
        return [link.tag for link in header.links]

    def put(self, header: Any, line: Any) -> None:
        header.links.append(self.line(tag=line))

    def take(self, header: Any, line: Any) -> None:
        (found,) = (link for link in header.links if link.tag is line)
        header.links.remove(found)

    def new_line(self, value: int) -> Any:
        return self.line.tag.property.mapper.class_(id=next_id(), value=value)


def _association_object() -> MappedDocument:
    class Author(Base):
        __tablename__ = "mp_author"
        id = key()
        value = number()

    class Link(Base):
        __tablename__ = "mp_link"
        book_id = key(ForeignKey("mp_book.id"))
        tag_id = key(ForeignKey("mp_author.id"))
        tag = relationship(Author)

    book = header_class(Base, "mp_book", links=relationship(Link, cascade=OWNED))
    declared = document(parts=("links", "links.tag"))(book)
    return _Association(name="association object", header=declared, line=Link)


class _Tree(MappedDocument):
    """``more`` is the number of nested details: each is below the previous one."""

    def members(self, header: Any) -> list[Any]:
        found = []
        below = list(header.tasks)
        while below:
            task = below.pop()
            found.append(task)
            below += task.subtasks
        return found

    def put(self, header: Any, line: Any) -> None:
        members = self.members(header)
        (members[-1].subtasks if members else header.tasks).append(line)

    def take(self, header: Any, line: Any) -> None:
        """Remove the detail, and move its children into its place."""
        owner = line.parent.subtasks if line.parent is not None else header.tasks
        below = list(line.subtasks)
        owner.extend(below)
        for one in below:
            if one in line.subtasks:
                line.subtasks.remove(one)
        owner.remove(line)


def _tree() -> MappedDocument:
    class Task(Base):
        __tablename__ = "mp_task"
        id = key()
        job_id = mapped_column(ForeignKey("mp_job.id"))
        parent_id = mapped_column(ForeignKey("mp_task.id"))
        value = number()
        parent = relationship("Task", back_populates="subtasks", remote_side=[id])  # noqa: A003
        subtasks = relationship("Task", back_populates="parent")

    job = header_class(Base, "mp_job", tasks=relationship(Task))
    declared = document(parts=("tasks", "tasks.subtasks"))(job)
    return _Tree(name="self-referential parts", header=declared, line=Task)


class _SelfReferential(MappedDocument):
    """The details are rows of the header's own class."""

    def new_line(self, value: int) -> Any:
        return self.line(id=-next_id(), value=value, total=0, touched=0)


def _self_referential() -> MappedDocument:
    class Category(Base):
        __tablename__ = "mp_category"
        id = key()
        parent_id = mapped_column(ForeignKey("mp_category.id"))
        total = number()
        touched = number()
        value = number(nullable=True)
        children = relationship("Category", back_populates="parent")
        parent = relationship("Category", back_populates="children", remote_side=[id])  # noqa: A003

    return _SelfReferential(
        name="self-referential", header=Category, line=Category, lines="children"
    )


class _TwoLevels(MappedDocument):
    """``more`` is the details of the details, which change together with them."""

    def new_line(self, value: int) -> Any:
        line = super().new_line(value)
        line.taxes.append(type(line).taxes.property.mapper.class_(id=next_id(), value=value))
        return line

    def change(self, header: Any, old: int, new: int) -> None:
        super().change(header, old, new)
        self._find(header, new).taxes[0].value = new

    def more(self, header: Any) -> Any:
        return sorted(tax.value for line in header.lines for tax in line.taxes)

    def expected_more(self, plain: PlainHeader) -> Any:
        return sorted(line.value for line in plain.lines)


def _two_levels() -> MappedDocument:
    tax = detail_class(Base, "mp_tax", "mp_taxed_line")
    line = detail_class(Base, "mp_taxed_line", "mp_taxed", taxes=relationship(tax, cascade=OWNED))
    header = header_class(Base, "mp_taxed", lines=relationship(line, cascade=OWNED))
    return _TwoLevels(name="two levels", header=document(header), line=line)


class _OneToOne(MappedDocument):
    """``more`` is the value of a scalar detail."""

    def new(self, number: int, values: Any) -> Any:
        header = super().new(number, values)
        header.cover = type(header).cover.property.mapper.class_(id=next_id(), value=0)
        return header

    def touch_parts(self, header: Any) -> None:
        header.cover.value += 1

    def more(self, header: Any) -> Any:
        return header.cover.value

    def expected_more(self, plain: PlainHeader) -> Any:
        return plain.parts_touched


def _one_to_one(lazy: Any) -> MappedDocument:
    table = f"mp_covered_{lazy}"
    line = detail_class(Base, f"{table}_line", table)
    cover = detail_class(Base, f"{table}_cover", table)
    header = header_class(
        Base,
        table,
        lines=relationship(line, cascade=OWNED),
        cover=relationship(cover, cascade=OWNED, uselist=False, lazy=lazy),
    )
    return _OneToOne(
        name=f"one-to-one, {lazy}",
        header=document(header),
        line=line,
        options=lambda: [selectinload(header.cover)] if lazy == "raise" else [],
    )


class TestRelationships(UnderTheLock):
    mappings = (
        _many_to_many(),
        _association_object(),
        _tree(),
        _self_referential(),
        _two_levels(),
        *(_one_to_one(lazy) for lazy in ("select", "joined", "raise")),
    )
