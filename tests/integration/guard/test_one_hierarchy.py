"""Statements on one class of a hierarchy, or an alias of it: the guard asks about the rows that they write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column, relationship
from sqlalchemy.orm import with_loader_criteria as criteria

from sa_doclock import LockingSession, UnlockedWrite, document
from tests.integration.guard.steps import hold
from tests.support.databases import Database
from tests.support.rows import rows


class Base(DeclarativeBase):
    """The tables of people and their animals."""


@document(parts=("dogs", "saddles"))
class Person(Base):
    __tablename__ = "oh_person"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    dogs: Mapped[list[Dog]] = relationship()
    saddles: Mapped[list[Saddle]] = relationship()


class Animal(Base):
    """No part: its subclass is one."""

    __tablename__ = "oh_animal"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(sa.String(10))
    age: Mapped[int]


class Cat(Animal):
    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012


class Dog(Animal):
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012
    person_id: Mapped[int | None] = mapped_column(sa.ForeignKey(Person.id))


class Puppy(Dog):
    __mapper_args__ = {"polymorphic_identity": "puppy"}  # noqa: RUF012


class Gear(Base):
    """No part either: its subclass has a table of its own."""

    __tablename__ = "oh_gear"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "gear"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(sa.String(10))
    age: Mapped[int]


class Saddle(Gear):
    __tablename__ = "oh_saddle"
    __mapper_args__ = {"polymorphic_identity": "saddle"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(sa.ForeignKey(Gear.id), primary_key=True)
    person_id: Mapped[int] = mapped_column(sa.ForeignKey(Person.id))
    size: Mapped[int]


@pytest.fixture
def people(database: Database) -> Iterator[LockingSession]:
    database.create(Base.metadata)
    with LockingSession(database.engine()) as session:
        with session.unguarded():
            session.add_all([Person(id=1), Person(id=2)])
            session.flush()
            for n in (1, 2):
                dog, cat = Dog(id=n, age=n, person_id=n), Cat(id=10 + n, age=n)
                session.add_all([dog, cat, Saddle(id=n, age=n, person_id=n, size=0)])
            session.add(Puppy(id=21, age=0, person_id=2))
            session.commit()
        yield session


ANIMALS: Any = Animal.__table__
SOME: Any = aliased(Animal)
YOUNG: Any = aliased(Puppy)
TABLE: Any = ANIMALS.alias()
FIRST = criteria(Animal, Animal.age == 1)
OF_FIRST = criteria(Animal, Animal.age == 1, include_aliases=True)
FIRST_PERSON = criteria(Person, Person.id == 1)

#: A statement, and the people whose documents it writes.
WRITTEN: dict[str, tuple[Any, set[int]]] = {
    "criteria of the base class": (sa.update(Animal).values(age=9).options(FIRST), {1}),
    "the same of a subclass": (sa.update(Dog).values(age=9).options(OF_FIRST), {1}),
    "of a joined one": (
        sa.update(Gear).values(age=9).options(criteria(Gear, Gear.age == 2)),
        {2},
    ),
    "a class of no document": (sa.update(Cat).values(age=9), set()),
    "criteria of another class": (
        sa.update(Dog).where(Dog.person_id == Person.id).values(age=9).options(FIRST_PERSON),
        {1, 2},
    ),
    "a column of the base class": (
        sa.update(Saddle).where(Gear.age == 1).values(size=1),  # for any row of the other table
        {1, 2},
    ),
    "alias": (sa.update(SOME).where(SOME.age == 1).values(age=9), {1}),
    # SQLAlchemy names the class of the alias by its table: rows of any class are written.
    "alias of a subclass": (sa.update(YOUNG).where(YOUNG.age == 1).values(age=9), {1}),
    "alias of a table": (sa.update(TABLE).where(TABLE.c.age == 1).values(age=9), {1}),
}


@pytest.mark.filterwarnings("ignore:.*cartesian product")  # so does SQLAlchemy say of these itself
@rows("name", WRITTEN)
def test_what_a_statement_writes_needs_its_locks_and_no_others(
    people: LockingSession, name: str
) -> None:
    statement, written = WRITTEN[name]
    for held in ({1}, {2}, {1, 2}, set[int]()):
        kept = hold(people, Person, *sorted(held))
        permitted = written <= held
        with nullcontext() if permitted else pytest.raises(UnlockedWrite):
            people.execute(statement.execution_options(synchronize_session=False))
        people.rollback()
        assert kept is not None
