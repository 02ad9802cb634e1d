"""What do declared documents cost: the write guard in a flush, and get_document?

``flush``: a header and one of its five details are changed and flushed under the lock, with
guard="off" and with guard="raise".  The flush alone is measured, as CPU time and wall time of
``session.flush()``.  ``flush, undeclared``: the same for a class that is not declared.
``get_document``: 100 details, each with a tax, are read under a shared lock by
``get_entity(options=[selectinload(...)])`` written by hand for a plain Session, and by
``get_document()``; ``5 details``: a small document without taxes.

    python benchmarks/documents.py [--rounds 30] [--repeat 40] [--json FILE]

On which databases: see benchmarks/overhead.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pairing import Pair, main
from sqlalchemy import Engine, ForeignKey, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
    selectinload,
    sessionmaker,
)

from sa_doclock import LockingSession, LockOptions, document

SMALL, LARGE = 5, 100


class Base(DeclarativeBase):
    pass


@document(parts=("details.taxes",))
class Doc(Base):
    __tablename__ = "doclock_documents_doc"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    details: Mapped[list[Detail]] = relationship(cascade="all, delete-orphan")


class Detail(Base):
    __tablename__ = "doclock_documents_detail"
    id: Mapped[int] = mapped_column(primary_key=True)
    doc_id: Mapped[int] = mapped_column(ForeignKey(Doc.id), index=True)
    value: Mapped[int]
    taxes: Mapped[list[Tax]] = relationship(cascade="all, delete-orphan")


class Tax(Base):
    __tablename__ = "doclock_documents_tax"
    id: Mapped[int] = mapped_column(primary_key=True)
    detail_id: Mapped[int] = mapped_column(ForeignKey(Detail.id), index=True)
    value: Mapped[int]


@document
class Flat(Base):
    """Headers and details alone, as in benchmarks/overhead.py."""

    __tablename__ = "doclock_documents_flat"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    items: Mapped[list[Item]] = relationship(cascade="all, delete-orphan")


class Item(Base):
    __tablename__ = "doclock_documents_item"
    id: Mapped[int] = mapped_column(primary_key=True)
    flat_id: Mapped[int] = mapped_column(ForeignKey(Flat.id), index=True)
    value: Mapped[int]


class Note(Base):
    """Not declared."""

    __tablename__ = "doclock_documents_note"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


def prepare(engine: Engine) -> list[Pair]:
    Base.metadata.create_all(engine)
    with LockingSession(engine) as session:
        details = [Detail(value=n, taxes=[Tax(value=n)]) for n in range(LARGE)]
        session.add(Doc(id=1, total=sum(d.value for d in details), details=details))
        items = [Item(value=n) for n in range(SMALL)]
        session.add(Flat(id=1, total=sum(item.value for item in items), items=items))
        session.add_all([Note(id=n, total=n) for n in range(1, 3)])
        session.commit()
    return [
        Pair("flush, guarded / off", 1.05, flush(engine, "off"), flush(engine, "raise")),
        Pair("flush, undeclared / off", 1.01, notes(engine, "off"), notes(engine, "raise")),
        Pair("100 details / selectinload", 1.0, *whole(engine, Doc, by_hand_doc)),
        Pair("5 details / selectinload", 1.0, *whole(engine, Flat, by_hand_flat)),
    ]


def flush(engine: Engine, guard: Any) -> Callable[[], None]:
    session = LockingSession(engine, guard=guard)
    numbers = iter(range(1, 1 << 62))

    def change() -> None:
        with session:
            flat = session.get_document(Flat, 1, LockOptions.ForUpdate)
            assert flat is not None
            for _ in range(10):
                flat.items[0].value = next(numbers)
                flat.total = next(numbers)
                session.flush()
            session.rollback()

    return change


def notes(engine: Engine, guard: Any) -> Callable[[], None]:
    session = LockingSession(engine, guard=guard)
    numbers = iter(range(1, 1 << 62))

    def change() -> None:
        with session:
            found = session.scalars(select(Note)).all()
            for _ in range(10):
                for note in found:
                    note.total = next(numbers)
                session.flush()
            session.rollback()

    return change


by_hand_doc = (selectinload(Doc.details).selectinload(Detail.taxes),)
by_hand_flat = (selectinload(Flat.items),)


def whole(
    engine: Engine, entity: type[Any], options: tuple[Any, ...]
) -> tuple[Callable[[], None], Callable[[], None]]:
    plain = sessionmaker(engine)
    locking = sessionmaker(engine, class_=LockingSession)
    statement = select(entity).where(entity.id == 1).with_for_update(read=True).options(*options)

    def by_hand() -> None:
        with plain() as session:
            if engine.dialect.name == "sqlite":
                session.connection().exec_driver_sql("BEGIN")
            assert session.scalars(statement, execution_options={"populate_existing": True}).one()
            session.rollback()

    def get_document() -> None:
        with locking() as session:
            assert session.get_document(entity, 1, LockOptions.SharedRead)
            session.release_locks()

    return by_hand, get_document


if __name__ == "__main__":
    main(__doc__ or "", prepare, Base.metadata.drop_all)
