"""A part whose foreign key the table sets by itself: a default, an onupdate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column, relationship
from sqlalchemy.orm import with_loader_criteria as criteria

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.integration.guard.steps import Action, hold, refused
from tests.integration.locking.call_counts import calls_of
from tests.support.databases import Database
from tests.support.rows import rows


class Base(DeclarativeBase):
    """The tables of what stands on the shelf for all that is new or changed."""


@document(parts=("books", "papers"))
class Shelf(Base):
    __tablename__ = "go_shelf"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    books: Mapped[list[Book]] = relationship()
    papers: Mapped[list[Paper]] = relationship()


class Book(Base):
    """Python and the server generate its foreign key."""

    __tablename__ = "go_book"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shelf_id: Mapped[int] = mapped_column(
        sa.ForeignKey(Shelf.id), server_default="2", onupdate=lambda: 2
    )
    pages: Mapped[int] = mapped_column(default=0)


class Paper(Base):
    """SQL expressions do."""

    __tablename__ = "go_paper"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shelf_id: Mapped[int] = mapped_column(
        sa.ForeignKey(Shelf.id), default=sa.text("2"), onupdate=sa.text("2")
    )
    pages: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def shelves(database: Database) -> Iterator[LockingSession]:
    database.create(Base.metadata)
    with LockingSession(database.engine()) as session:
        with session.unguarded():
            session.add_all([Shelf(id=1), Shelf(id=2)])
            session.flush()
            session.add_all([Book(id=1, shelf_id=1), Paper(id=1, shelf_id=1)])
            session.commit()
        yield session


def change(entity: type[Any]) -> Action:
    def act(session: LockingSession) -> None:
        session.get_one(entity, 1).pages = 7
        session.flush()

    return act


def save(session: LockingSession) -> None:
    book = session.get_one(Book, 1)
    book.pages = 7
    session.bulk_save_objects([book])


def add(entity: type[Any]) -> Action:
    def act(session: LockingSession) -> None:
        session.add(entity(id=9))
        session.flush()

    return act


FLUSHES = [change(Book), change(Paper), add(Book), add(Paper)]
STATEMENTS: list[Action] = [
    save,
    lambda session: session.bulk_save_objects([Paper(id=9)]),
    lambda session: session.execute(sa.update(Book).values(pages=7)),
    lambda session: session.bulk_update_mappings(sa.inspect(Paper), [{"id": 1, "pages": 7}]),
    lambda session: session.execute(sa.insert(Paper).values(id=9)),
]


@rows("place", range(len(FLUSHES)))
def test_a_flush_writes_under_the_lock_of_the_document_that_the_row_comes_to(
    shelves: LockingSession, place: int
) -> None:
    hold(shelves, Shelf, 1)
    with refused(shelves, Shelf, 2, sent_first=True):
        FLUSHES[place](shelves)
    shelves.rollback()
    hold(shelves, Shelf, 1, 2)
    FLUSHES[place](shelves)
    shelves.rollback()


@rows("place", range(len(STATEMENTS)))
def test_a_statement_that_leaves_it_out_does_not_tell_the_document(
    shelves: LockingSession, place: int
) -> None:
    hold(shelves, Shelf, 1)
    with refused(shelves, Shelf, None):
        STATEMENTS[place](shelves)
    shelves.rollback()


@pytest.mark.databases("sqlite")
def test_a_new_part_that_names_it_costs_the_guard_few_calls(shelves: LockingSession) -> None:
    def calls(count: int) -> int:
        held = hold(shelves, Shelf, 1)
        shelves.add_all(Book(id=100 + number, shelf_id=1) for number in range(count))
        found = calls_of(shelves.flush)
        shelves.rollback()
        assert held
        return sum(call.lstrip().startswith("guard/") for call in found)

    calls(1), calls(2)  # what is found out once for each mapper, and each statement
    assert (calls(30) - calls(10)) / 20 <= 4


# --------------------------------------------------------------------------------------------------
# UPDATE of an alias to which SQLAlchemy adds conditions: for the table beside the alias, so that others are written.


class AliasSubclassBase(DeclarativeBase):
    """The tables of people and their animals."""


@document(parts=["animals"])
class Person(AliasSubclassBase):
    __tablename__ = "as_person"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    animals: Mapped[list[Animal]] = relationship()


class Animal(AliasSubclassBase):
    __tablename__ = "as_animal"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(sa.String(10))
    age: Mapped[int]
    person_id: Mapped[int] = mapped_column(sa.ForeignKey(Person.id))


class Dog(Animal):
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012


DOG: Any = aliased(Dog)
ANIMAL: Any = aliased(Animal)
OLD = criteria(Animal, Animal.age > 9, include_aliases=True)


@pytest.mark.not_databases("mssql")  # UPDATE of an alias is no T-SQL
@pytest.mark.filterwarnings("ignore:.*cartesian product")  # so does SQLAlchemy say of these itself
def test_it_is_refused_under_a_lock_too(database: Database) -> None:
    database.create(AliasSubclassBase.metadata)
    with LockingSession(database.engine()) as session:
        with session.unguarded():
            session.add_all([Person(id=1), Person(id=2)])
            session.flush()
            session.add_all([Animal(id=1, age=1, person_id=1), Dog(id=2, age=1, person_id=2)])
            session.commit()
        for statement, held in (
            (sa.update(DOG).where(DOG.age == 1).values(age=5), [2]),
            (sa.update(ANIMAL).where(ANIMAL.age == 1).values(age=5).options(OLD), [1, 2]),
        ):
            people = session.get_entities(Person, held, LockOptions.ForUpdate)
            with pytest.raises(UnlockedWrite):
                session.execute(statement.execution_options(synchronize_session=False))
            session.rollback()
            assert people
        people = session.get_entities(Person, [1, 2], LockOptions.ForUpdate)
        plain = sa.update(ANIMAL).where(ANIMAL.age == 1).values(age=5)
        session.execute(plain.execution_options(synchronize_session=False))
        session.commit()
        assert people
        assert session.scalars(sa.select(Animal.age)).all() == [5, 5]
