"""Statements and bulk methods raise the versions of the documents whose parts they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sa_doclock import (
    LockingSession,
    LockOptions,
    StaleDocument,
    UnlockedWrite,
    atomic_update,
)
from tests.integration.checkouts.test_statements import sent
from tests.integration.versions.models import (
    KINDS,
    Base,
    Machine,
    Marked,
    MarkedLine,
    Numbered,
    NumberedLine,
    Remark,
    Repair,
    Room,
    Served,
)

pytestmark = pytest.mark.each_value

ForUpdate = LockOptions.ForUpdate
each_kind = pytest.mark.parametrize(("header", "line"), KINDS)
Write = Callable[[LockingSession, Any], Any]

WRITES: dict[str, Write] = {
    "update": lambda s, line: s.execute(
        sa.update(line).where(line.header_id == 1).values(value=line.value + 1)
    ),
    "update of a table": lambda s, line: s.execute(
        sa.update(line.__table__).where(line.__table__.c.id == 1).values(value=7)
    ),
    "delete": lambda s, line: s.execute(sa.delete(line).where(line.id == 2)),
    "insert": lambda s, line: s.execute(sa.insert(line).values(id=9, header_id=1, value=5)),
    "insert of rows": lambda s, line: s.execute(
        sa.insert(line), [{"id": n, "header_id": 1, "value": 5} for n in (8, 9)]
    ),
    "insert from select": lambda s, line: s.execute(
        sa.insert(line).from_select(
            ["id", "header_id", "value"],
            sa.select(line.id + 20, line.header_id, line.value).where(line.id == 1),
        )
    ),
    "update by keys": lambda s, line: s.execute(sa.update(line), [{"id": 1, "value": 7}]),
    "bulk_update_mappings": lambda s, line: s.bulk_update_mappings(line, [{"id": 1, "value": 7}]),
    "bulk_insert_mappings": lambda s, line: s.bulk_insert_mappings(
        line, [{"id": 9, "header_id": 1, "value": 7}]
    ),
    "bulk_save_objects, new": lambda s, line: s.bulk_save_objects(
        [line(id=9, header_id=1, value=7)]
    ),
    "bulk_save_objects, changed": lambda s, line: save_changed(s, line),  # noqa: PLW0108
    "legacy query": lambda s, line: s.query(line).filter_by(id=1).update({"value": 7}),
}


def save_changed(session: LockingSession, line: Any) -> None:
    with session.no_autoflush:
        one = session.get_one(line, 1)
        one.value = 99
        session.expunge(one)  # else the next flush writes it again
        session.bulk_save_objects([one])


@each_kind
@pytest.mark.parametrize("write", WRITES)
def test_the_version_is_raised(
    session: LockingSession, other: LockingSession, header: Any, line: Any, write: str
) -> None:
    seen = other.get_one(header, 1).version
    other.rollback()
    with session.locked(header, 1) as found:
        WRITES[write](session, line)
        assert found.version != seen
    with pytest.raises(StaleDocument):
        other.get_entity(header, 1, ForUpdate, version=seen)
    with session.locked(header, 1) as found:  # the session continues with the new version
        found.total += 1


@pytest.mark.parametrize("write", WRITES)
def test_it_is_raised_by_one(session: LockingSession, write: str) -> None:
    with session.locked(Numbered, 1) as found:
        WRITES[write](session, NumberedLine)
        assert found.version == 2
    assert session.get_one(Numbered, 1).version == 2
    assert session.get_one(Numbered, 2).version == 1


def test_it_costs_one_statement(session: LockingSession, engine: sa.Engine) -> None:
    session.get_one_entity(Numbered, 1, ForUpdate)
    statements = sent(engine, lambda: WRITES["update"](session, NumberedLine))
    raising = [one for one in statements if one.startswith("UPDATE vs_numbered SET version")]
    assert len(raising) == 1
    assert [one.split()[0] for one in statements] == ["SELECT", "UPDATE", "UPDATE"]


def test_a_part_that_moves_raises_both(session: LockingSession) -> None:
    first, second = session.get_entities(Numbered, [1, 2], ForUpdate)
    session.execute(sa.update(NumberedLine).filter_by(id=1).values(header_id=2))
    assert (first.version, second.version) == (2, 2)


def test_without_the_lock_nothing_is_raised(session: LockingSession) -> None:
    for write in WRITES.values():
        with pytest.raises(UnlockedWrite):
            write(session, NumberedLine)
        session.rollback()
    assert session.get_one(Numbered, 1).version == 1


def test_a_savepoint_takes_it_back(session: LockingSession) -> None:
    with session.locked(Numbered, 1) as found:
        with session.begin_nested() as savepoint:
            WRITES["update"](session, NumberedLine)
            assert found.version == 2
            savepoint.rollback()
        assert found.version == 1
        found.total = 5
    assert found.version == 2


def test_expired_objects_do_not_lose_it(session: LockingSession) -> None:
    with session.locked(Numbered, 1) as found:
        WRITES["update"](session, NumberedLine)
        session.expire_all()
        session.refresh(found)
        assert found.version == 2


def test_the_program_may_set_it(session: LockingSession) -> None:
    with session.locked(Numbered, 1) as found:
        found.version = 40
        with session.no_autoflush:
            session.bulk_update_mappings(NumberedLine, [{"id": 1, "value": 7}])
    assert found.version == 40


def test_parts_by_their_kind(session: LockingSession) -> None:
    session.add_all([Machine(id=1, repairs=[Repair(id=1)]), Room(id=1)])
    session.commit()
    with session.locked(Machine, 1) as machine:
        session.execute(sa.update(Repair).values(text="x"))
        assert machine.version == 2
    assert session.get_one(Room, 1).version == 1
    with session.unguarded():
        session.execute(sa.update(Repair).values(text="y"))  # as its docstring says
    session.commit()
    assert session.get_one(Machine, 1).version == 2
    assert Remark is not None


@pytest.mark.parametrize("by", ["class", "table"])
def test_an_atomic_update_raises_it(session: LockingSession, by: str) -> None:
    target: Any = Numbered if by == "class" else Numbered.__table__
    columns: Any = Numbered if by == "class" else target.c
    loaded = session.get_one(Numbered, 1)
    statement = atomic_update(
        sa.update(target).where(columns.id == 1).values(total=columns.total + 1)
    )
    for version in (2, 3):
        session.execute(statement)
        session.commit()
        assert loaded.version == version
        assert session.get_one(Numbered, 2).version == 1
    with session.locked(Numbered, 1, version=3) as found:
        found.total += 1


def test_an_atomic_update_of_a_version_of_the_server(session: LockingSession) -> None:
    statement = atomic_update(sa.update(Served).filter_by(id=1).values(total=Served.total + 1))
    session.execute(statement)
    session.commit()
    assert session.get_one(Served, 1).version == 2


def test_an_atomic_update_whose_version_sql_cannot_make(session: LockingSession) -> None:
    adds = sa.update(Marked).filter_by(id=1).values(total=Marked.total + 1)
    with pytest.raises(ValueError, match="the version of Marked comes from a version_id_generator"):
        atomic_update(adds)
    seen = session.get_one(Marked, 1).version
    session.execute(atomic_update(adds.values(version="another")))
    session.commit()
    assert session.get_one(Marked, 1).version == "another" != seen
    ordered = sa.update(Numbered).ordered_values((Numbered.total, Numbered.total + 1))
    with pytest.raises(ValueError, match="ordered_values"):
        atomic_update(ordered)
    own = sa.update(Numbered).ordered_values(
        (Numbered.total, Numbered.total + 1), (Numbered.version, Numbered.version + 10)
    )
    session.execute(atomic_update(own))
    session.commit()
    assert session.get_one(Numbered, 1).version == 11


def test_a_version_in_another_table() -> None:
    class Own(DeclarativeBase):
        pass

    class Vehicle(Own):
        __tablename__ = "vs_vehicle"
        id: Mapped[int] = mapped_column(primary_key=True)
        version: Mapped[int] = mapped_column()
        kind: Mapped[str] = mapped_column(sa.String(10))
        __mapper_args__ = {"version_id_col": version, "polymorphic_on": kind}  # noqa: RUF012

    class Car(Vehicle):
        __tablename__ = "vs_car"
        id: Mapped[int] = mapped_column(sa.ForeignKey("vs_vehicle.id"), primary_key=True)
        doors: Mapped[int]
        __mapper_args__ = {"polymorphic_identity": "car"}  # noqa: RUF012

    with pytest.raises(ValueError, match="the version of Car is in another table"):
        atomic_update(sa.update(Car).values(doors=Car.doors + 1))


@pytest.mark.parametrize("guard", ["warn"])
def test_a_guard_that_warns(factory: sessionmaker[LockingSession], guard: str) -> None:
    with factory(guard=guard) as session, session.locked(Numbered, 1) as found:
        WRITES["update"](session, NumberedLine)
        assert found.version == 2


@each_kind
def test_an_update_of_the_header_itself(session: LockingSession, header: Any, line: Any) -> None:
    with session.locked(header, 1) as found:
        seen = found.version
        session.execute(sa.update(header).filter_by(id=1).values(total=7))
        assert found.version != seen
        assert found.total == 7
        found.lines.append(line(id=9, value=5))
    assert session.get_one(header, 1).version != seen


def test_an_update_of_the_header_raises_it_once(session: LockingSession) -> None:
    table: Any = Numbered.__table__
    found = session.get_one_entity(Numbered, 1, ForUpdate)
    for number, statement in enumerate(
        (
            sa.update(Numbered).filter_by(id=1).values(total=7),
            sa.update(table).where(table.c.id == 1).values(total=8),
            sa.update(Numbered).filter_by(id=1).values(version=Numbered.version + 1),
        )
    ):
        session.execute(statement)
        session.expire(found)
        assert found.version == number + 2
    rows = [{"id": 1, "total": 7, "version": found.version}]
    session.execute(sa.update(Numbered), rows)  # SQLAlchemy raises it
    session.expire(found)
    assert found.version == 5
    with pytest.raises(KeyError, match="version"):
        session.execute(sa.update(Numbered), [{"id": 1, "total": 9}])
    session.execute(sa.delete(NumberedLine))
    session.execute(sa.delete(Numbered).filter_by(id=1))
    session.commit()


@each_kind
def test_a_loaded_version_needs_no_query(
    session: LockingSession, engine: sa.Engine, header: Any, line: Any
) -> None:
    """Under asyncio an access cannot load it.  A server's version is not known before."""
    found = session.get_one_entity(header, 1, ForUpdate)
    WRITES["update"](session, line)
    known = header is not Served
    assert len(sent(engine, lambda: found.version)) == (0 if known else 1)
    seen = found.version
    session.refresh(found)
    assert found.version == seen


# --------------------------------------------------------------------------------------------------
# A statement with a schema_translate_map, or on another engine, raises the version it writes to.

TENANT = "vs_tenant"
MAP: dict[str, Any] = {"schema_translate_map": {None: TENANT}}
KINDS_SECOND_SCHEMA = ((Numbered, NumberedLine), (Marked, MarkedLine))
TABLES: list[Any] = [one.__table__ for kinds in KINDS_SECOND_SCHEMA for one in kinds]


@pytest.fixture
def tenant(engine: sa.Engine) -> Iterator[sa.Engine]:
    """Create a second schema with the same rows."""
    there = engine.execution_options(**MAP)
    with there.begin() as connection:
        connection.execute(sa.schema.CreateSchema(TENANT))
        Base.metadata.create_all(connection, tables=TABLES)
        for header, line in KINDS_SECOND_SCHEMA:
            version = 1 if header is Numbered else "one"
            connection.execute(sa.insert(header).values(id=1, total=0, version=version))
            connection.execute(sa.insert(line).values(id=1, header_id=1, value=0))
    yield there
    with there.begin() as connection:
        Base.metadata.drop_all(connection, tables=TABLES)
        connection.execute(sa.schema.DropSchema(TENANT))


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(("header", "line"), KINDS_SECOND_SCHEMA)
def test_a_statement_raises_the_version_where_it_writes(
    engine: sa.Engine, tenant: sa.Engine, header: Any, line: Any
) -> None:
    of_header = sa.select(header.version).where(header.id == 1)

    def versions() -> list[object]:
        found = []
        for one in (engine, tenant):
            with one.connect() as connection:
                found.append(connection.scalar(of_header))
        return found

    here, there = versions()
    with LockingSession(engine) as session:
        session.scalars(
            sa.select(header).where(header.id == 1).with_for_update(), execution_options=MAP
        ).one()
        session.execute(sa.update(line).where(line.id == 1).values(value=7), execution_options=MAP)
        session.commit()
    assert versions()[0] == here
    assert versions()[1] != there


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(("header", "line"), KINDS_SECOND_SCHEMA)
def test_a_statement_raises_the_version_in_the_database_that_it_names(
    engine: sa.Engine, tmp_path: Path, header: Any, line: Any
) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    Base.metadata.create_all(other, tables=TABLES)
    with other.begin() as connection:
        version = 1 if header is Numbered else "one"
        connection.execute(sa.insert(header).values(id=1, total=0, version=version))
        connection.execute(sa.insert(line).values(id=1, header_id=1, value=0))
    of_key, there = sa.select(header.version).where(header.id == 1), {"bind": other}
    with LockingSession(engine) as session:
        session.scalars(
            sa.select(header).where(header.id == 1).with_for_update(), bind_arguments=there
        ).one()
        session.execute(sa.update(line).where(line.id == 1).values(value=7), bind_arguments=there)
        session.commit()
    with other.connect() as connection:
        assert connection.scalar(of_key) != version
    other.dispose()


# --------------------------------------------------------------------------------------------------
# A version does not cost a statement per row, in any transaction of a session.

LINES = 9


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("guard", ["raise", "off"])
@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize(
    ("header", "line"), KINDS[:2]
)  # the third one's trigger runs after RETURNING
def test_many_lines_in_every_transaction(
    factory: sessionmaker[LockingSession], header: Any, line: Any, expired: bool, guard: str
) -> None:
    engine: Any = factory.kw["bind"]
    with Session(engine) as plain, plain.begin():
        plain.add_all([line(id=100 + number, header_id=1, value=0) for number in range(LINES)])
    selects: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        selects.extend([statement] if statement.startswith("SELECT") else [])

    with factory(guard=guard) as session:
        kept: list[Any] = []
        for _ in range(3):
            found = session.get_one_entity(header, 1, LockOptions.ForUpdate)
            kept += [found, *found.lines]
            for one in found.lines:
                if expired:
                    session.expire(one, ["header_id"])
                one.value += 1
            event.listen(engine, "before_cursor_execute", note)
            session.flush()
            event.remove(engine, "before_cursor_execute", note)
            session.commit()
            assert len(selects) <= 3
            selects.clear()
    with Session(engine) as plain, plain.begin():
        plain.execute(sa.delete(line).where(line.id >= 100))
