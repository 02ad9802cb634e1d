"""UPDATE of an alias to which SQLAlchemy adds conditions: for the table beside the alias, so that others are written."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column, relationship
from sqlalchemy.orm import with_loader_criteria as criteria

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.support.databases import Database


class Base(DeclarativeBase):
    """The tables of people and their animals."""


@document(parts=["animals"])
class Person(Base):
    __tablename__ = "as_person"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    animals: Mapped[list[Animal]] = relationship()


class Animal(Base):
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
    database.create(Base.metadata)
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
