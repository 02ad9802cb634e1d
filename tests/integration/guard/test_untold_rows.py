"""Rows written through a class without their document: the flush queries the database for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain, combinations
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.integration.guard.steps import refused
from tests.support.databases import Database
from tests.support.rows import rows

pytestmark = pytest.mark.quick


class Base(DeclarativeBase):
    """The tables of people, their belongings, and the cars."""


class Other(DeclarativeBase):
    """The base of classes without documents."""


def key(*of: Any) -> Mapped[int]:
    return mapped_column(*of, primary_key=True, autoincrement=False)


def owner() -> Mapped[int | None]:
    return mapped_column(sa.ForeignKey("ut_person.id"))


LABELS = sa.Table(
    "ut_label",
    Base.metadata,
    sa.Column("person_id", sa.ForeignKey("ut_person.id"), primary_key=True),
    sa.Column("tag_id", sa.ForeignKey("ut_tag.id"), primary_key=True),
    sa.Column("note", sa.String(10)),
)


MARKS = sa.Table(
    "ut_mark",
    Base.metadata,
    sa.Column("person_id", sa.ForeignKey("ut_person.id")),
    sa.Column("tag_id", sa.ForeignKey("ut_tag.id")),
    sa.Column("note", sa.String(10)),
)


@document(parts=("saddles", "tools", "large", "cats", "tags", "marks"))
class Person(Base):
    __tablename__ = "ut_person"
    id: Mapped[int] = key()
    saddles: Mapped[list[Saddle]] = relationship()
    tools: Mapped[list[Tool]] = relationship()
    large: Mapped[list[Large]] = relationship()
    cats: Mapped[list[Cat]] = relationship()
    tags: Mapped[list[Tag]] = relationship(secondary=LABELS)
    marks: Mapped[list[Tag]] = relationship(secondary=MARKS)


class Tag(Base):
    __tablename__ = "ut_tag"
    id: Mapped[int] = key()


class Gear(Base):
    """Its subclass is the part, whose foreign key is in this class's table."""

    __tablename__ = "ut_gear"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "gear"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(sa.String(10))
    age: Mapped[int]
    person_id: Mapped[int | None] = owner()


class Saddle(Gear):
    __tablename__ = "ut_saddle"
    __mapper_args__ = {"polymorphic_identity": "saddle"}  # noqa: RUF012
    id: Mapped[int] = key(sa.ForeignKey(Gear.id))
    size: Mapped[int]


class Thing(Base):
    """No column tells which of its rows are tools."""

    __tablename__ = "ut_thing"
    id: Mapped[int] = key()
    age: Mapped[int]


class Tool(Thing):
    __tablename__ = "ut_tool"
    id: Mapped[int] = key(sa.ForeignKey(Thing.id))
    person_id: Mapped[int | None] = owner()


class Item(Base):
    """An expression tells which of its rows are parts."""

    __tablename__ = "ut_item"
    id: Mapped[int] = key()
    size: Mapped[int] = mapped_column()
    __mapper_args__ = {  # noqa: RUF012
        "polymorphic_on": sa.case((size > 5, "large"), else_="item"),
        "polymorphic_identity": "item",
    }


class Large(Item):
    __mapper_args__ = {"polymorphic_identity": "large"}  # noqa: RUF012
    person_id: Mapped[int | None] = owner()


class Vehicle(Base):
    """Only its subclass is a header."""

    __tablename__ = "ut_vehicle"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "vehicle"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(sa.String(10))
    seats: Mapped[int]


@document(parts=("dogs",))
class Car(Vehicle):
    __tablename__ = "ut_car"
    __mapper_args__ = {"polymorphic_identity": "car"}  # noqa: RUF012
    id: Mapped[int] = key(sa.ForeignKey(Vehicle.id))
    doors: Mapped[int]
    dogs: Mapped[list[Dog]] = relationship()


class Animal(Base):
    """One table with parts of two documents."""

    __tablename__ = "ut_animal"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(sa.String(10))
    age: Mapped[int]


class Cat(Animal):
    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012
    person_id: Mapped[int | None] = owner()


class Dog(Animal):
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012
    car_id: Mapped[int | None] = mapped_column(sa.ForeignKey(Car.id))


TABLES: Any = Base.metadata.tables
SADDLES: Any = Saddle.__table__


class PlainGear(Other):
    __table__ = TABLES["ut_gear"]
    number = TABLES["ut_gear"].c.id


class PlainSaddle(Other):
    __table__ = SADDLES


class PlainVehicle(Other):
    __table__ = TABLES["ut_vehicle"]


class PlainCar(Other):
    __table__ = TABLES["ut_car"]


class PlainAnimal(Other):
    __table__ = TABLES["ut_animal"]


class PlainLabel(Other):
    __table__ = LABELS


class PlainMark(Other):
    """The table has no primary key."""

    __table__ = MARKS
    __mapper_args__ = {"primary_key": [MARKS.c.person_id, MARKS.c.tag_id]}  # noqa: RUF012
    owner = MARKS.c.person_id


class PersonAndLabel(Other):
    __table__ = sa.join(TABLES["ut_person"], LABELS)
    number = sa.orm.column_property(TABLES["ut_person"].c.id, LABELS.c.person_id)


class SomeOfAnimal(Other):
    __table__ = TABLES["ut_animal"]
    __mapper_args__ = {"include_properties": ["id", "age"]}  # noqa: RUF012


def change(entity: Any, ident: Any, **values: Any) -> Callable[[LockingSession], None]:
    def action(session: LockingSession) -> None:
        row = session.get_one(entity, ident)
        for name, value in values.items():
            setattr(row, name, value)
        session.flush()

    return action


def delete(entity: Any, ident: Any) -> Callable[[LockingSession], None]:
    def action(session: LockingSession) -> None:
        session.delete(session.get_one(entity, ident))
        session.flush()

    return action


def add(entity: Any, **values: Any) -> Callable[[LockingSession], None]:
    def action(session: LockingSession) -> None:
        session.add(entity(**values))
        session.flush()

    return action


def bulk_save(entity: Any, ident: Any, **values: Any) -> Callable[[LockingSession], None]:
    def action(session: LockingSession) -> None:
        row = session.get(entity, ident) or entity(id=ident)
        with session.no_autoflush:
            for name, value in values.items():
                setattr(row, name, value)
            session.bulk_save_objects([row])
        session.expunge_all()

    return action


def execute(statement: Any, parameters: Any = None) -> Callable[[LockingSession], Any]:
    return lambda session: session.execute(statement, parameters)


ACTIONS: dict[str, Callable[[LockingSession], Any]] = {
    "another table of the row": change(PlainGear, 1, age=9),
    "two documents": lambda s: [change(PlainGear, n, age=9)(s) for n in (1, 2)],
    "a row of the base class": change(PlainGear, 5, age=9),
    "moved": change(PlainGear, 1, person_id=2),
    "moved by an expression": change(PlainGear, 1, person_id=sa.literal(2)),
    "the table of the subclass": change(PlainSaddle, 1, size=9),
    "deleted there": delete(PlainSaddle, 1),
    "a base row that becomes a part": add(PlainSaddle, id=4, size=4),
    "so does one in bulk": bulk_save(PlainSaddle, 4, size=4),
    "by INSERT": execute(sa.insert(SADDLES).values(id=4, size=4)),
    "by a list": execute(sa.insert(SADDLES), [{"id": 3, "size": 4}, {"id": 4, "size": 4}]),
    "one of no owner": execute(sa.insert(SADDLES).values(id=3, size=4)),
    "no discriminator": change(Thing, 1, age=9),
    "none, and no part": change(Thing, 3, age=9),
    "by an expression": change(Item, 3, size=8),
    "by an expression of an UPDATE": execute(sa.update(Item), [{"id": 3, "size": 8}]),
    "by that of a table": execute(sa.update(TABLES["ut_item"]).values(size=8)),
    "by none": change(Item, 3, size=1),
    "out of it": change(Large, 1, size=1),
    "a header's base table": change(PlainVehicle, 1, seats=9),
    "no header": change(PlainVehicle, 3, seats=9),
    "a header's own table": change(PlainCar, 1, doors=9),
    "a header in bulk": bulk_save(PlainVehicle, 1, seats=9),
    "a new header": add(PlainCar, id=3, doors=3),
    "a part of the first document": change(PlainAnimal, 1, age=9),
    "of the second": change(PlainAnimal, 2, age=9),
    "of none": change(PlainAnimal, 3, age=9),
    "moved to the second": change(PlainAnimal, 2, car_id=2),
    "some columns": change(SomeOfAnimal, 2, age=9),
    "some columns, deleted": delete(SomeOfAnimal, 1),
    "some columns in bulk": bulk_save(SomeOfAnimal, 2, age=9),
    "a part added": add(PlainAnimal, id=9, kind="dog", age=1, car_id=1),
    "an association": add(PlainLabel, person_id=1, tag_id=2),
    "an association moved": change(PlainLabel, (1, 1), person_id=2),
    "no association any more": delete(PlainLabel, (1, 1)),
}
ACTIONS |= {
    "one without a key": add(PlainMark, owner=1, tag_id=2),
    "it moved": change(PlainMark, (1, 1), owner=2),
    "it deleted": delete(PlainMark, (1, 1)),
    "it in bulk": bulk_save(PlainMark, (1, 1), note="a"),
    "it by a list": execute(sa.update(PlainMark), [{"owner": 1, "tag_id": 1, "note": "a"}]),
    "an association in bulk": bulk_save(PlainLabel, (1, 1), note="a"),
    "it by a list of values": execute(
        sa.update(PlainLabel), [{"person_id": 1, "tag_id": 1, "note": "a"}]
    ),
    "a new header by a join": add(PersonAndLabel, number=3, tag_id=1),
}
SEED: dict[str, list[dict[str, Any]]] = {
    "ut_person": [{"id": 1}, {"id": 2}],
    "ut_tag": [{"id": 1}, {"id": 2}],
    "ut_label": [{"person_id": 1, "tag_id": 1}],
    "ut_mark": [{"person_id": 1, "tag_id": 1}],
    "ut_gear": [
        {"id": 1, "kind": "saddle", "age": 1, "person_id": 1},
        {"id": 2, "kind": "saddle", "age": 2, "person_id": 2},
        {"id": 3, "kind": "saddle", "age": 3, "person_id": None},
        {"id": 4, "kind": "saddle", "age": 4, "person_id": 1},
        {"id": 5, "kind": "gear", "age": 5, "person_id": 1},
    ],
    "ut_saddle": [{"id": 1, "size": 1}, {"id": 2, "size": 2}],
    "ut_thing": [{"id": 1, "age": 1}, {"id": 2, "age": 2}, {"id": 3, "age": 3}],
    "ut_tool": [{"id": 1, "person_id": 1}, {"id": 2, "person_id": 2}],
    "ut_item": [{"id": n, "size": size, "person_id": 1} for n, size in ((1, 7), (3, 2))],
    "ut_vehicle": [
        {"id": 1, "kind": "car", "seats": 1},
        {"id": 2, "kind": "car", "seats": 2},
        {"id": 3, "kind": "car", "seats": 3},
    ],
    "ut_car": [{"id": 1, "doors": 1}, {"id": 2, "doors": 2}],
    "ut_animal": [
        {"id": 1, "kind": "cat", "age": 1, "person_id": 1, "car_id": None},
        {"id": 2, "kind": "dog", "age": 2, "person_id": None, "car_id": 1},
        {"id": 3, "kind": "animal", "age": 3, "person_id": None, "car_id": None},
    ],
}


@pytest.fixture
def people(database: Database) -> Iterator[LockingSession]:
    database.create(Base.metadata)
    own = {"isolation_level": "READ COMMITTED"} if database.name in ("mysql", "mariadb") else {}
    engine = database.engine(**own)
    with engine.begin() as connection:
        for name, seed in SEED.items():
            connection.execute(sa.insert(TABLES[name]), seed)
    with LockingSession(engine) as session:
        yield session


def contents(session: LockingSession) -> dict[tuple[type[Any], int], list[Any]]:
    """Return the rows of each document, with all columns of their tables."""
    tables = {name.removeprefix("ut_"): table for name, table in TABLES.items()}
    gear, thing, vehicle = tables["gear"], tables["thing"], tables["vehicle"]
    item, animal = tables["item"], tables["animal"]
    found: dict[tuple[type[Any], int], list[Any]] = {}
    for entity, name, statement in (
        (Car, "id", sa.select(vehicle, tables["car"].c.doors).join(tables["car"])),
        (Car, "car_id", sa.select(animal).where(animal.c.kind == "dog")),
        (Person, "person_id", sa.select(animal).where(animal.c.kind == "cat")),
        (Person, "person_id", sa.select(gear, SADDLES.c.size).join(SADDLES)),
        (Person, "person_id", sa.select(thing, tables["tool"].c.person_id).join(tables["tool"])),
        (Person, "person_id", sa.select(item).where(item.c.size > 5)),
        (Person, "person_id", sa.select(LABELS)),
        (Person, "person_id", sa.select(MARKS)),
    ):
        for row in session.connection().execute(statement):
            found.setdefault((entity, row._mapping[name]), []).append(tuple(row))
    return found


def written_by(session: LockingSession, action: Callable[[LockingSession], Any]) -> set[Any]:
    """Return the existing documents whose rows the action writes."""
    before = contents(session)
    with session.unguarded():
        action(session)
    after = contents(session)
    session.rollback()
    session.expunge_all()
    new = {(Car, 3), (Person, 3)}
    return {
        one
        for one in {*before, *after} - new
        if one[1] is not None and before.get(one) != after.get(one)
    }


@rows("name", ACTIONS)
def test_what_it_writes_needs_its_locks_and_no_others(people: LockingSession, name: str) -> None:
    people.rollback()  # ends the previous row's transaction
    people.expunge_all()
    action = ACTIONS[name]
    written = written_by(people, action)
    each = sorted(written, key=str)
    for held in chain.from_iterable(combinations(each, many) for many in range(len(each) + 1)):
        kept = [people.get_one_entity(one, n, LockOptions.ForUpdate) for one, n in held]
        with nullcontext() if written == {*held} else pytest.raises(UnlockedWrite):
            action(people)
        people.rollback()
        people.expunge_all()
        assert len(kept) == len(held)


def test_the_error_names_the_row_and_the_attribute(people: LockingSession) -> None:
    with refused(people, Person, 1, "PlainGear 1 would be changed in 'age'"):
        change(PlainGear, 1, age=9)(people)


def test_many_rows_are_asked_about_by_one_statement(people: LockingSession) -> None:
    def asked(count: int) -> int:
        sent: list[str] = []
        for row in list(people.scalars(sa.select(Thing).limit(count))):
            row.age += 1
        connection = people.connection()
        note: Any = lambda *all_of_it: sent.append(all_of_it[2])  # noqa: E731
        sa.event.listen(connection, "before_cursor_execute", note)
        with people.no_autoflush:
            people.flush()
        sa.event.remove(connection, "before_cursor_execute", note)
        people.rollback()
        return sum("SELECT" in one for one in sent)

    with people.unguarded():
        people.add_all([Thing(id=n, age=1) for n in range(50, 80)])
        people.commit()
        people.execute(sa.delete(TABLES["ut_tool"]))
        people.commit()
    assert asked(30) == asked(1)


def test_an_association_that_names_its_owner_is_not_asked_about(people: LockingSession) -> None:
    kept = people.get_one_entity(Person, 1, LockOptions.ForUpdate)
    sent: list[str] = []
    note: Any = lambda *all_of_it: sent.append(all_of_it[2])  # noqa: E731
    sa.event.listen(people.connection(), "before_cursor_execute", note)
    people.add(PlainLabel(person_id=1, tag_id=2))
    people.flush()
    assert [one for one in sent if "FROM ut_" in one] == []
    assert kept


def test_a_get_bind_that_needs_a_class_is_given_one(people: LockingSession) -> None:
    class Routed(LockingSession):
        def get_bind(self, mapper: Any = None, **_: Any) -> Any:
            assert mapper is not None
            return people.bind

    people.rollback()
    with Routed() as session:
        kept = session.get_one_entity(Person, 1, LockOptions.ForUpdate)
        session.execute(sa.update(PlainLabel), [{"person_id": 1, "tag_id": 1, "note": "a"}])
        assert kept


def test_a_listener_that_moves_a_row_meanwhile_needs_the_lock(people: LockingSession) -> None:
    kept = people.get_one_entity(Person, 1, LockOptions.ForUpdate)
    row: Any = people.get_one(PlainGear, 1)
    sa.event.listen(people, "before_flush", lambda *_: setattr(row, "person_id", 2), once=True)
    row.age = 9
    with refused(people, Person, 2, sent_first=True):
        people.flush()
    people.rollback()
    assert kept


def test_an_expired_object_without_a_primary_key_in_its_table_is_moved_under_both_locks(
    people: LockingSession,
) -> None:
    kept = people.get_entities(Person, [1, 2], LockOptions.ForUpdate)
    row: Any = people.get_one(PlainMark, (1, 1))
    people.expire(row)
    row.owner = 2
    people.flush()
    assert kept
