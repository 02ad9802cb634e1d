"""A document's rows that a statement writes through a base class, a sibling or an alias."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain, combinations
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    ORMExecuteState,
    aliased,
    column_property,
    mapped_column,
    relationship,
    with_loader_criteria,
)
from sqlalchemy.orm import with_loader_criteria as criteria

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.integration.guard.models import Budget, Line, Order, Post, Repair, Tax, Ticket, Work
from tests.integration.guard.steps import Action, hold, refused
from tests.support.databases import Database
from tests.support.rows import rows


class Base(DeclarativeBase):
    """The tables of people, their belongings and their animals."""


class Other(DeclarativeBase):
    """The base of classes without documents."""


def key() -> Mapped[int]:
    return mapped_column(primary_key=True, autoincrement=False)


@document(parts=("saddles", "dogs"))
class Person(Base):
    __tablename__ = "wt_person"
    id: Mapped[int] = key()
    saddles: Mapped[list[Saddle]] = relationship()
    dogs: Mapped[list[Dog]] = relationship()


@document(parts=("cats",))
class House(Base):
    __tablename__ = "wt_house"
    id: Mapped[int] = key()
    cats: Mapped[list[Cat]] = relationship()


class Gear(Base):
    """Joined inheritance; one subclass is a part."""

    __tablename__ = "wt_gear"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "gear"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(sa.String(10))
    age: Mapped[int]


class Saddle(Gear):
    __tablename__ = "wt_saddle"
    __mapper_args__ = {"polymorphic_identity": "saddle"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(sa.ForeignKey(Gear.id, ondelete="CASCADE"), primary_key=True)
    size: Mapped[int] = mapped_column(default=0)
    person_id: Mapped[int | None] = mapped_column(sa.ForeignKey(Person.id))


class RacingSaddle(Saddle):
    __tablename__ = "wt_racing"
    __mapper_args__ = {"polymorphic_identity": "racing"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(sa.ForeignKey(Saddle.id, ondelete="CASCADE"), primary_key=True)
    speed: Mapped[int]


class Rope(Gear):
    __mapper_args__ = {"polymorphic_identity": "rope"}  # noqa: RUF012


class Animal(Base):
    """Single-table inheritance; two subclasses are parts of two documents."""

    __tablename__ = "wt_animal"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(sa.String(10))
    age: Mapped[int]


class Dog(Animal):
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012
    person_id: Mapped[int | None] = mapped_column(sa.ForeignKey(Person.id))
    twice: Mapped[int] = column_property(Animal.__table__.c.age * 2)


class Cat(Animal):
    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012
    house_id: Mapped[int | None] = mapped_column(sa.ForeignKey(House.id))


GEARS: Any = Gear.__table__
SADDLES: Any = Saddle.__table__
RACING: Any = RacingSaddle.__table__
ANIMALS: Any = Animal.__table__


class PlainGear(Other):
    """Its attributes are named differently than those of the first class."""

    __table__ = GEARS
    number = GEARS.c.id
    years = GEARS.c.age


class PlainAnimal(Other):
    __table__ = ANIMALS
    number = ANIMALS.c.id
    owner = ANIMALS.c.person_id


GEAR_ALIAS: Any = aliased(Gear)
TABLE_ALIAS: Any = GEARS.alias()
OLD = criteria(Dog, Dog.age > 9)

STATEMENTS: dict[str, tuple[Any, Any]] = {
    "table of the base class": (sa.update(GEARS).where(GEARS.c.id == 1).values(age=9), None),
    "all its rows": (sa.update(GEARS).values(age=9), None),
    "rows of its other classes": (sa.update(GEARS).where(GEARS.c.id > 9).values(age=9), None),
    "delete": (sa.delete(GEARS).where(GEARS.c.age == 2), None),
    "an alias of it": (sa.update(TABLE_ALIAS).where(TABLE_ALIAS.c.age == 1).values(age=9), None),
    "an alias of the base class": (
        sa.update(GEAR_ALIAS).where(GEAR_ALIAS.age == 2).values(age=9),
        None,
    ),
    "by a column of the subclass": (sa.update(Gear).where(Saddle.size == 1).values(age=9), None),
    "by the key of the subclass": (
        sa.update(Gear).where(Gear.id == Saddle.id, Saddle.size == 1).values(age=9),
        None,
    ),
    "by a column of the base class": (sa.update(Saddle).where(Gear.age == 10).values(size=9), None),
    "by its key": (
        sa.update(Saddle).where(Saddle.id == GEARS.c.id, GEARS.c.age == 2).values(size=9),
        None,
    ),
    "insert into the table of the subclass": (sa.insert(RACING).values(id=1, speed=5), None),
    "the same, of a new row": (sa.insert(RACING).values(id=3, speed=5), None),
    "rows of a sibling": (sa.update(Rope).values(age=9), None),
    "of a sibling, by key": (sa.update(Rope), [{"id": 1, "age": 9}, {"id": 10, "age": 9}]),
    "second class": (sa.update(PlainGear).where(PlainGear.years == 1).values(years=9), None),
    "second class, by key": (sa.update(PlainGear), [{"number": 2, "years": 9}]),
    "second class, moved": (sa.update(PlainAnimal).filter_by(number=1).values(owner=2), None),
    "second class, moved by key": (sa.update(PlainAnimal), [{"number": 1, "owner": 2}]),
    "second class, of another kind": (sa.update(PlainAnimal), [{"number": 1, "kind": "cat"}]),
    "second class, two documents": (sa.update(PlainAnimal).values(age=9), None),
    "WHERE of another class": (sa.update(Animal).where(Dog.age == 1).values(age=9), None),
    "WHERE of its expression": (sa.update(Animal).where(Dog.twice == 2).values(age=9), None),
    "criteria of another class": (
        sa.update(Cat).where(Cat.id == Dog.id + 10).values(age=9).options(OLD),
        None,
    ),
}


@pytest.fixture
def people(database: Database) -> Iterator[LockingSession]:
    database.create(Base.metadata)
    own = {"isolation_level": "READ COMMITTED"} if database.name in ("mysql", "mariadb") else {}
    with LockingSession(database.engine(**own)) as session:
        with session.unguarded():
            session.add_all([one(id=n) for one in (Person, House) for n in (1, 2)])
            session.flush()
            for n in (1, 2):
                session.add_all(
                    [Saddle(id=n, age=n, size=n, person_id=n), Rope(id=n + 9, age=n + 9)]
                )
                session.add_all([Dog(id=n, age=n, person_id=n), Cat(id=n + 10, age=n, house_id=n)])
            session.add(Saddle(id=3, age=3, person_id=None))
            session.commit()
        yield session


def contents(session: LockingSession) -> dict[tuple[type[Any], int], list[Any]]:
    """Return the rows of each document, with all columns of their tables."""
    saddles = sa.select(SADDLES, GEARS, RACING).join(GEARS, GEARS.c.id == SADDLES.c.id)
    saddles = saddles.outerjoin(RACING, RACING.c.id == SADDLES.c.id)
    dogs, cats = (sa.select(ANIMALS).where(ANIMALS.c.kind == kind) for kind in ("dog", "cat"))
    found: dict[tuple[type[Any], int], list[Any]] = {}
    for entity, name, parts in (
        (Person, "person_id", saddles),
        (Person, "person_id", dogs),
        (House, "house_id", cats),
    ):
        for row in session.connection().execute(parts):
            found.setdefault((entity, row._mapping[name]), []).append(tuple(row))
    return found


def written_by(session: LockingSession, statement: Any, parameters: Any) -> set[Any]:
    """Return the documents whose rows the statement writes."""
    before = contents(session)
    with session.unguarded():
        session.execute(statement, parameters)
    after = contents(session)
    session.rollback()
    return {
        one for one in {*before, *after} if one[1] is not None and before.get(one) != after.get(one)
    }


@pytest.mark.filterwarnings("ignore:.*cartesian product")  # SQLAlchemy warns so
@rows("name", STATEMENTS)
def test_what_a_statement_writes_needs_its_locks_and_no_others(
    people: LockingSession, name: str
) -> None:
    people.rollback()  # ends the previous row's transaction
    statement, parameters = STATEMENTS[name]
    if parameters is None:
        statement = statement.execution_options(synchronize_session=False)
    written = written_by(people, statement, parameters)
    each = sorted(written, key=str)
    for held in chain.from_iterable(combinations(each, many) for many in range(len(each) + 1)):
        kept = [people.get_one_entity(one, n, LockOptions.ForUpdate) for one, n in held]
        with nullcontext() if written == {*held} else pytest.raises(UnlockedWrite):
            people.execute(statement, parameters)
        people.rollback()
        assert len(kept) == len(held)


# --------------------------------------------------------------------------------------------------
# with_loader_criteria() in selects and in writes of the program.

MakeSession = Callable[..., LockingSession]


def hide(session: LockingSession, entity: Any, criterion: Any) -> None:
    """Hide rows from every SELECT of the session, as in SQLAlchemy's soft-delete recipe."""

    @sa.event.listens_for(session, "do_orm_execute")
    def select_others(state: ORMExecuteState) -> None:
        if state.is_select and not state.is_column_load and not state.is_relationship_load:
            option = with_loader_criteria(entity, sa.not_(criterion), include_aliases=True)
            state.statement = state.statement.options(option)


def change_tax(session: LockingSession) -> None:
    session.get_one(Tax, 1).rate = 8
    session.flush()


def add_post(session: LockingSession) -> None:
    session.add(Post(id=9, code="a"))
    session.flush()


HIDDEN: dict[str, tuple[Any, Any, Any, Action]] = {
    "a part of a hidden part": (Line, Line.id == 1, Order, change_tax),
    "a part whose header is hidden": (Budget, Budget.code == "a", Budget, add_post),
    "rows by key": (
        *(Line, Line.id == 1, Order),
        lambda session: session.execute(sa.update(Line), [{"id": 1, "value": 7}]),
    ),
    "of a statement": (
        *(Line, Line.id == 1, Order),
        lambda session: session.execute(sa.update(Tax).where(Tax.id == 1).values(rate=8)),
    ),
    "a statement": (
        *(Line, Line.id == 2, Order),
        lambda session: session.execute(sa.delete(Line).where(Line.id == 2)),
    ),
}


@rows("name", HIDDEN)
def test_a_row_that_the_program_hides_from_itself_has_a_document(
    make_session: MakeSession, name: str
) -> None:
    entity, criterion, document, write = HIDDEN[name]
    with make_session() as session:
        hide(session, entity, criterion)
        with refused(session, document, 1):
            write(session)
    with make_session() as session:
        held = hold(session, document, 1)
        hide(session, entity, criterion)
        with session.unguarded():  # the same write
            write(session)
        session.rollback()
        assert held


UPDATE: Any = sa.update(Line).values(value=7)
FIRST: Any = with_loader_criteria(Line, Line.order_id == 1)
OF_FIRST: dict[str, tuple[Any, int]] = {
    "update": (UPDATE.options(FIRST), 2),
    "delete": (sa.delete(Line).where(Line.id == 2).options(FIRST), 1),
    "of another class": (
        UPDATE.where(Line.order_id == Order.id).options(
            with_loader_criteria(Order, Order.id == 1), FIRST
        ),
        2,
    ),
}


@rows("name", OF_FIRST)
def test_criteria_narrow_what_is_written(make_session: MakeSession, name: str) -> None:
    statement, written = OF_FIRST[name]
    with make_session() as session:
        held = hold(session, Order, 1)
        result: Any = session.execute(statement)
        assert result.rowcount == written
        assert held
    with make_session() as session, refused(session, Order, 1):
        session.execute(statement)


@pytest.mark.parametrize("of_subclass", [False, True])
def test_criteria_that_do_not_narrow_it(session: LockingSession, of_subclass: bool) -> None:
    """They concern a class that the statement does not name, or widen the result of NOT IN."""
    if of_subclass:
        held: Any = hold(session, Ticket, 1)
        none = with_loader_criteria(Repair, Repair.id == 1)
        statement: Any = sa.update(Work).where(Work.id < 3).values(hours=7).options(none)
    else:
        held = hold(session, Order, 1)
        none = with_loader_criteria(Tax, Tax.id == 0)
        statement = UPDATE.where(Line.id.not_in(sa.select(Tax.line_id))).options(none)
    with refused(session, Ticket if of_subclass else Order, 2):
        session.execute(statement)
    assert held
