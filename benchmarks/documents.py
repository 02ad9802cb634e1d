"""Measure the cost of declared documents: the write guard in a flush, and get_document().

``flush``: a header and one of its five details are changed and flushed under the lock, with
guard="off" and with guard="raise".  The flush alone is measured, as CPU time and wall time of
``session.flush()``.  ``flush, undeclared``: the same for a class that is not declared.
``get_document``: 100 details, each with a tax, are read under a shared lock by
``get_entity(options=[selectinload(...)])`` written by hand for a plain Session, and by
``get_document()``.  A small document: see benchmarks/overhead.py.

    python -m benchmarks.documents [--databases sqlite,postgresql] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Engine, ForeignKey, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
    selectinload,
    sessionmaker,
)

from benchmarks.lab import script
from benchmarks.lab.pairing import Way, compare, ratio
from benchmarks.lab.places import Place
from sa_doclock import LockingSession, LockOptions, document

SMALL, LARGE = 5, 100
CLOCKS = ("cpu", "wall")


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
    """Only headers and details, as in benchmarks/overhead.py."""

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
    """A class that is not declared."""

    __tablename__ = "doclock_documents_note"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


SECONDS = 3.0


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("sqlite", "postgresql"), measure)


def measure(run: script.Script, place: Place) -> None:
    engine = place.engine()
    fill(engine)
    table = run.table(run.findings.servers[place.name], "second / first", "cpu", "wall")
    for name, (what, first, second) in pairs(engine).items():
        rounds = compare({"first": first, "second": second}, run.effort(SECONDS))
        figures = {clock: ratio(rounds, "second", "first", clock) for clock in CLOCKS}
        for clock, figure in figures.items():
            run.findings.note(f"{place.name}.{name}.{clock}", figure)
        table.add_row(what, *map(str, figures.values()))
    run.show(table)
    Base.metadata.drop_all(engine)


def fill(engine: Engine) -> None:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with LockingSession(engine) as session:
        details = [Detail(value=n, taxes=[Tax(value=n)]) for n in range(LARGE)]
        session.add(Doc(id=1, total=sum(d.value for d in details), details=details))
        items = [Item(value=n) for n in range(SMALL)]
        session.add(Flat(id=1, total=sum(item.value for item in items), items=items))
        session.add_all([Note(id=n, total=n) for n in range(1, 3)])
        session.commit()


def pairs(engine: Engine) -> dict[str, tuple[str, Way, Way]]:
    return {
        "flush": ("flush, guarded / off", flush(engine, "off"), flush(engine, "raise")),
        "notes": ("flush, undeclared / off", notes(engine, "off"), notes(engine, "raise")),
        "large": ("100 details / selectinload", *whole(engine, Doc, by_hand_doc)),
    }


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
    main()
