"""Members of an Enum are locked and returned in the order of what the database stores for them."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database

ForUpdate, None_ = LockOptions.ForUpdate, LockOptions.None_


class Season(enum.Enum):
    """Declared in another order than that of the names and that of the values."""

    winter = "a"
    autumn = "d"
    spring = "b"


class Base(DeclarativeBase):
    pass


class Sale(Base):
    """Stored by name: on PostgreSQL and MySQL as their own type, whose order is the declared one."""

    __tablename__ = "enum_sale"
    season: Mapped[Season] = mapped_column(sa.Enum(Season), primary_key=True)
    total: Mapped[int]


class Stock(Base):
    """Stored by value, as a text."""

    __tablename__ = "enum_stock"
    season: Mapped[Season] = mapped_column(
        sa.Enum(
            Season,
            native_enum=False,
            length=8,
            values_callable=lambda found: [one.value for one in found],
        ),
        primary_key=True,
    )
    shelf: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Market(Base):
    """A class whose town is the same in upper case to MySQL and MariaDB."""

    __tablename__ = "enum_market"
    town: Mapped[str] = mapped_column(sa.String(10), primary_key=True)
    season: Mapped[Season] = mapped_column(sa.Enum(Season), primary_key=True)


BY_NAME = [Season.autumn, Season.spring, Season.winter]
BY_VALUE = [Season.winter, Season.spring, Season.autumn]


@pytest.fixture
def session(database: Database) -> Any:
    """Open a session on the rows of all seasons."""
    database.create(Base.metadata)
    with LockingSession(database.engine(), expire_on_commit=False) as session:
        session.add_all(Sale(season=one, total=1) for one in Season)
        session.add_all(Stock(season=one, shelf=number) for one in Season for number in (1, 2))
        session.add_all(Market(town="York", season=one) for one in Season)
        session.commit()
        session.expunge_all()
        yield session


@pytest.mark.parametrize("lock", [None_, LockOptions.SharedRead, ForUpdate], ids=str)
def test_they_are_locked_and_returned_in_one_order(
    session: LockingSession, lock: LockOptions
) -> None:
    found = session.get_entities(Sale, Season, lock)
    assert [one.season for one in found] == BY_NAME
    if lock is not None_:
        assert set(session.held_locks) == {(Sale, (one,)) for one in Season}
    given = session.get_documents(Sale, [*Season], lock, order="given")
    assert [one.season for one in given] == [*Season]


def test_so_are_those_of_which_some_are_held(session: LockingSession) -> None:
    held = session.get_entity(Sale, Season.spring, ForUpdate)
    found = session.get_entities(Sale, Season, ForUpdate)
    assert [one.season for one in found] == BY_NAME
    assert found[1] is held
    assert session.get_entities(Sale, [*Season], ForUpdate) == found


def test_a_part_of_a_key_is_ordered_as_the_whole(session: LockingSession) -> None:
    keys = [(one, number) for number in (2, 1) for one in Season]
    found = session.get_entities(Stock, keys, ForUpdate)
    assert [(one.season, one.shelf) for one in found] == [
        (one, number) for one in BY_VALUE for number in (1, 2)
    ]


@pytest.mark.databases("mysql", "mariadb")
def test_so_are_those_that_the_database_has_otherwise(session: LockingSession) -> None:
    found = session.get_entities(Market, [("york", one) for one in Season], ForUpdate)
    assert [(one.town, one.season) for one in found] == [("York", one) for one in BY_NAME]


def test_a_member_and_what_is_stored_for_it_are_one_key(session: LockingSession) -> None:
    found = session.get_entities(Sale, ["spring", Season.spring], ForUpdate)
    assert [one.season for one in found] == [Season.spring]
    assert session.get_entity(Stock, ("b", 1), ForUpdate) is not None
    assert set(session.held_locks) == {(Sale, (Season.spring,)), (Stock, (Season.spring, 1))}
    with pytest.raises(ValueError, match="'summer' is not a member of the Enum"):
        session.get_entity(Sale, "summer", ForUpdate)
