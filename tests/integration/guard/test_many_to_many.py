"""Rows of several documents, and owners that the table sets itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column, relationship
from sqlalchemy.orm import with_loader_criteria as criteria

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.integration.guard.models import Order, Tag
from tests.integration.guard.steps import Action as GeneratedOwnersAction
from tests.integration.guard.steps import hold, refused, writes_sent
from tests.integration.locking.call_counts import calls_of
from tests.support.databases import Database
from tests.support.rows import rows

pytestmark = pytest.mark.quick


# --------------------------------------------------------------------------------------------------
# Parts that several documents share: the row belongs to all of them, the link to one.

Action = Callable[[LockingSession], object]


def append_tag(session: LockingSession) -> object:
    order, tag = session.get_one(Order, 1), session.get_one(Tag, 2)
    order.tags.append(tag)
    return order


def append_order(session: LockingSession) -> object:
    order, tag = session.get_one(Order, 1), session.get_one(Tag, 2)
    tag.orders.append(order)
    return tag, order


def remove_tag(session: LockingSession) -> object:
    order = session.get_one(Order, 1)
    order.tags.clear()
    return order


def remove_order(session: LockingSession) -> object:
    order, tag = session.get_one(Order, 1), session.get_one(Tag, 1)
    tag.orders.remove(order)
    return tag, order


def append_new_tag(session: LockingSession) -> object:
    order = session.get_one(Order, 1)
    order.tags.append(Tag(id=9, name="new"))
    return order


def new_tag_with_order(session: LockingSession) -> object:
    session.add(tag := Tag(id=9, name="new", orders=[session.get_one(Order, 1)]))
    return tag


LINKS: dict[str, Action] = {
    one.__name__: one
    for one in (
        append_tag,
        append_order,
        remove_tag,
        remove_order,
        append_new_tag,
        new_tag_with_order,
    )
}
each_link = pytest.mark.parametrize("action", LINKS.values(), ids=LINKS)


@each_link
def test_a_link_needs_the_lock_of_its_document(session: LockingSession, action: Action) -> None:
    kept = action(session)
    with refused(session, Order, 1):
        session.flush()
    assert kept


@each_link
def test_the_other_document_is_no_help(session: LockingSession, action: Action) -> None:
    held = hold(session, Order, 2)
    kept = action(session)
    with refused(session, Order, 1):
        session.flush()
    assert all((held, kept))


@each_link
def test_a_link_needs_the_lock_of_no_other(session: LockingSession, action: Action) -> None:
    held = hold(session, Order, 1)
    kept = action(session)
    with writes_sent(session) as sent:
        session.commit()
    assert sent
    assert all((held, kept))


def change_tag(session: LockingSession) -> object:
    (tag := session.get_one(Tag, 1)).name = "changed"
    return tag


def delete_tag(session: LockingSession) -> object:
    session.delete(tag := session.get_one(Tag, 1))
    return tag


@pytest.mark.parametrize("action", [change_tag, delete_tag])
def test_the_row_needs_the_locks_of_all_documents(session: LockingSession, action: Action) -> None:
    for held, missing in ((1, 2), (2, 1)):
        order = hold(session, Order, held)
        kept = action(session)
        with refused(session, Order, missing, "Tag 1"):
            session.flush()
        assert all((order, kept))
        session.rollback()
    orders = hold(session, Order, 1, 2)
    kept = action(session)
    session.commit()
    assert all((orders, kept))


def test_a_row_that_was_linked_in_this_transaction_is_the_documents(
    session: LockingSession,
) -> None:
    (order,) = hold(session, Order, 2)
    (tag := session.get_one(Tag, 3)).name = "still nobody's"
    session.flush()
    order.tags.append(tag)
    session.flush()
    tag.name = "of the second"
    session.commit()
    tag.name = "not held any more"
    with refused(session, Order, 2, "Tag 3", "'name'"):
        session.flush()


def test_to_delete_a_document_is_no_change_of_its_tags_other_documents(
    session: LockingSession,
) -> None:
    (order,) = hold(session, Order, 1)
    for comment in order.comments:
        session.delete(comment)
    session.delete(order)
    session.commit()
    assert [one.id for one in session.get_one(Tag, 1).orders] == [2]


# --------------------------------------------------------------------------------------------------
# An association table between the parts of two documents: each row belongs to both.


class Base(DeclarativeBase):
    """The tables of this file."""


NAMES = ("plan", "room", "speaker", "seat")
booking = sa.Table(
    "ad_booking",
    Base.metadata,
    *(sa.Column(f"{name}_id", sa.ForeignKey(f"ad_{name}.id"), primary_key=True) for name in NAMES),
)


class Speaker(Base):
    __tablename__ = "ad_speaker"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Seat(Base):
    __tablename__ = "ad_seat"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@document(parts=("speakers",))
class Plan(Base):
    __tablename__ = "ad_plan"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    speakers: Mapped[list[Speaker]] = relationship(
        secondary=booking,
        primaryjoin=lambda: Plan.id == booking.c.plan_id,
        secondaryjoin=lambda: Speaker.id == booking.c.speaker_id,
    )


@document(parts=("seats",))
class Room(Base):
    __tablename__ = "ad_room"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seats: Mapped[list[Seat]] = relationship(
        secondary=booking,
        primaryjoin=lambda: Room.id == booking.c.room_id,
        secondaryjoin=lambda: Seat.id == booking.c.seat_id,
        overlaps="speakers",
    )


@pytest.mark.parametrize(("held", "other"), [(Plan, Room), (Room, Plan)])
def test_its_rows_are_written_under_the_locks_of_both(
    database: Database, held: Any, other: Any
) -> None:
    database.create(Base.metadata)
    engine = database.engine()
    with engine.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(table.insert().values({one.name: 1 for one in table.c}))
    with LockingSession(engine) as session:
        kept = hold(session, held, 1)
        with refused(session, other, 1, "deleted"):
            session.execute(sa.delete(booking))
        kept += hold(session, other, 1)
        session.execute(sa.delete(booking))
        session.commit()


# --------------------------------------------------------------------------------------------------
# The table itself sets a part's foreign key: a default, an onupdate.


class GeneratedOwnersBase(DeclarativeBase):
    """The tables of parts whose foreign key is generated."""


@document(parts=("books", "papers"))
class Shelf(GeneratedOwnersBase):
    __tablename__ = "go_shelf"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    books: Mapped[list[Book]] = relationship()
    papers: Mapped[list[Paper]] = relationship()


class Book(GeneratedOwnersBase):
    """Python and the server generate its foreign key."""

    __tablename__ = "go_book"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shelf_id: Mapped[int] = mapped_column(
        sa.ForeignKey(Shelf.id), server_default="2", onupdate=lambda: 2
    )
    pages: Mapped[int] = mapped_column(default=0)


class Paper(GeneratedOwnersBase):
    """SQL expressions generate its foreign key."""

    __tablename__ = "go_paper"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shelf_id: Mapped[int] = mapped_column(
        sa.ForeignKey(Shelf.id), default=sa.text("2"), onupdate=sa.text("2")
    )
    pages: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def shelves(database: Database) -> Iterator[LockingSession]:
    database.create(GeneratedOwnersBase.metadata)
    with LockingSession(database.engine()) as session:
        with session.unguarded():
            session.add_all([Shelf(id=1), Shelf(id=2)])
            session.flush()
            session.add_all([Book(id=1, shelf_id=1), Paper(id=1, shelf_id=1)])
            session.commit()
        yield session


def change(entity: type[Any]) -> GeneratedOwnersAction:
    def act(session: LockingSession) -> None:
        session.get_one(entity, 1).pages = 7
        session.flush()

    return act


def save(session: LockingSession) -> None:
    book = session.get_one(Book, 1)
    book.pages = 7
    session.bulk_save_objects([book])


def add(entity: type[Any]) -> GeneratedOwnersAction:
    def act(session: LockingSession) -> None:
        session.add(entity(id=9))
        session.flush()

    return act


FLUSHES = [change(Book), change(Paper), add(Book), add(Paper)]
STATEMENTS: list[GeneratedOwnersAction] = [
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

    calls(1), calls(2)  # sends the queries that run once per mapper and statement
    assert (calls(30) - calls(10)) / 20 <= 4


# --------------------------------------------------------------------------------------------------
# UPDATE of an alias: SQLAlchemy adds conditions on the table, not the alias, so other rows change.


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


@pytest.mark.not_databases("mssql")  # T-SQL has no UPDATE of an alias
@pytest.mark.filterwarnings("ignore:.*cartesian product")  # SQLAlchemy warns so
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
