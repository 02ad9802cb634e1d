"""Keys of many documents: enums, compared by hash, or different from the table's primary key."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions, claim_each
from tests.support.databases import Database

None_ = LockOptions.None_


# --------------------------------------------------------------------------------------------------
# Enum members are locked and returned in the order of their stored values.

ForUpdate = LockOptions.ForUpdate


class Season(enum.Enum):
    """The declared order differs from the order of names and of values."""

    winter = "a"
    autumn = "d"
    spring = "b"


class Base(DeclarativeBase):
    pass


class Sale(Base):
    """Stored by name: on PostgreSQL and MySQL in a native type, sorted as declared."""

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
    """A class whose town MySQL and MariaDB compare case-insensitively."""

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


# --------------------------------------------------------------------------------------------------
# The keys of many documents are looked up by hash, not compared pairwise.

ROWS = 60
compared: Counter[str] = Counter()


class Number(int):
    """An integer that counts its comparisons."""

    def __eq__(self, other: object) -> bool:
        compared["=="] += 1
        return int.__eq__(self, other) is True

    __hash__ = int.__hash__


class Numbered(sa.TypeDecorator[Number]):
    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Number | None:
        return None if value is None else Number(value)


class Deed(Base):
    __tablename__ = "ck_deed"
    id: Mapped[Number] = mapped_column(Numbered, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(sa.String(10))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "deed"}  # noqa: RUF012


class Will(Deed):
    __tablename__ = "ck_will"
    __mapper_args__ = {"polymorphic_identity": "will"}  # noqa: RUF012
    id: Mapped[Number] = mapped_column(Numbered, sa.ForeignKey("ck_deed.id"), primary_key=True)


@pytest.mark.parametrize("entity", [Deed, Will])
def test_each_key_is_compared_a_few_times(
    database: Database, engine: sa.Engine, entity: type[Deed]
) -> None:
    database.create(Base.metadata)
    with LockingSession(engine) as session:
        session.add_all(entity(id=Number(n)) for n in range(ROWS))
        session.commit()
        session.expunge_all()
        compared.clear()
        assert len(session.get_entities(entity, range(ROWS), LockOptions.ForUpdate)) == ROWS
    assert compared["=="] < 10 * ROWS


# --------------------------------------------------------------------------------------------------
# Headers whose mapped key is not the PRIMARY KEY of their table.

NoWait = LockOptions.NoWait
_metadata = sa.MetaData()
_mappers = registry()


def _table(name: str, *more: Any) -> sa.Table:
    return sa.Table(
        name,
        _metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("code", sa.String(20), nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        *more,
    )


def _mapped(table: sa.Table) -> Any:
    entity = type(f"Item of {table.name}", (), {})
    _mappers.map_imperatively(entity, table, primary_key=[table.c.code])
    return entity


_by_constraint = _table("lo_constraint", sa.UniqueConstraint("code", name="lo_constraint_code"))
_by_index = _table("lo_index", sa.Index("lo_index_code", "code", unique=True))
_unnamed = _table("lo_unnamed", sa.UniqueConstraint("code"))
# The program's Table declares another primary key than the database has.
_keyless = sa.Table("lo_keyless", _metadata, sa.Column("code", sa.String(20), nullable=False))
_believed = sa.Table(
    "lo_keyless", sa.MetaData(), sa.Column("code", sa.String(20), primary_key=True)
)
ITEMS = {table.name: (table, _mapped(table)) for table in (_by_constraint, _by_index, _unnamed)}
Believed: Any = type("Believed", (), {})
_mappers.map_imperatively(Believed, _believed)


@pytest.fixture
def engine_other_primary_key(database: Database) -> sa.Engine:
    database.create(_metadata)
    engine = database.engine()
    with engine.begin() as connection:
        for table, _ in ITEMS.values():
            rows = [{"id": n, "code": f"code {n:03}", "total": n} for n in range(1, 401)]
            connection.execute(table.insert(), rows)
        connection.execute(_keyless.insert(), [{"code": "a"}, {"code": "b"}])
    return engine


@pytest.mark.databases("mysql", "mariadb", "postgresql")
@pytest.mark.parametrize("name", ITEMS)
def test_no_other_row_is_waited_for(engine_other_primary_key: sa.Engine, name: str) -> None:
    table, entity = ITEMS[name]
    codes = [f"code {n:03}" for n in (7, 5, 9)]
    with (
        LockingSession(engine_other_primary_key) as session,
        LockingSession(engine_other_primary_key) as other,
    ):
        other.get_one_entity(entity, "code 300", ForUpdate)
        other.get_one_entity(entity, "code 006", ForUpdate)
        found = session.get_entities(entity, codes, ForUpdate | NoWait)
        assert [one.code for one in found] == sorted(codes)
        with pytest.raises(LockNotAvailable):
            other.get_entities(entity, ["code 005", "code 200"], ForUpdate | NoWait)
    claimed = []
    few = sa.select(entity).where(table.c.total < 4)
    for claim in claim_each(lambda: LockingSession(engine_other_primary_key), few, batch=2):
        with claim as one:
            claimed.append(one.code)
    assert claimed == ["code 001", "code 002", "code 003"]


@pytest.mark.databases("mysql", "mariadb")
def test_a_table_without_that_key_is_refused(engine_other_primary_key: sa.Engine) -> None:
    with (
        LockingSession(engine_other_primary_key) as session,
        pytest.raises(LockNotSupported, match="has no index for the mapped key"),
    ):
        session.get_entities(Believed, ["a", "b"], ForUpdate)
