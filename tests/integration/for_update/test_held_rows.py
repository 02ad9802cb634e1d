"""A row that is held was read under its lock: nothing that the session has of it is older than the lock."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from lab.running.kept import KeptTables
from sa_doclock import LockingSession, LockNotSupported, UnlockedWrite, UnsavedChanges
from tests.integration.for_update.held_rows import (
    AFTER,
    BEFORE,
    CLASSES,
    COLUMNS,
    KNOWN,
    LINES,
    PENDING,
    Base,
    Beside,
    Case,
    all_cases,
)
from tests.support.databases import MATRIX, Database

pytestmark = [
    pytest.mark.read_committed,
    pytest.mark.not_databases("sqlite-journal"),  # its readers keep others from writing
    pytest.mark.filterwarnings("ignore:The Query.get"),
]

_IN_A_RUN = 80


def fill(connection: sa.Connection) -> None:
    with Session(connection) as session:
        session.add_all([Beside(id=1), Beside(id=2)])
        for entity in CLASSES.values():
            session.add_all([entity(id=1, **BEFORE), entity(id=2, **BEFORE)])
        session.flush()
        for line in LINES.values():
            session.add_all([line(id=1, header_id=1, value=10), line(id=2, header_id=1, value=20)])
        session.flush()


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    """Keep the tables until the last test of this file has ended."""
    tables = KeptTables(Base.metadata, fill)
    yield tables
    tables.close()


@pytest.fixture
def engine(database: Database, kept: KeptTables) -> sa.Engine:
    kept.put_rows(database)
    innodb = database.name in ("mysql", "mariadb")
    return database.engine(**({"isolation_level": "READ COMMITTED"} if innodb else {}))


class Trial:
    """One case: what the session had, what others have changed, and the truth of the database."""

    def __init__(self, engine: sa.Engine, case: Case) -> None:
        self._engine, self._case = engine, case
        self._entity: Any = CLASSES[case.kind]
        self._table: Any = self._entity.__table__
        self._line: Any = LINES[self._entity]

    def outcome(self) -> str:
        """Return what is wrong; empty if nothing is."""
        self._write(**BEFORE)
        with LockingSession(self._engine, expire_on_commit=False) as session:
            undeferred = undefer(self._entity.note), undefer(self._entity.sum_of_lines)
            header = session.get_one(self._entity, 1, options=undeferred)
            other = session.get_one(self._entity, 2)
            lines = list(header.lines)
            assert header.note == "old"
            session.commit()
            for name, value in PENDING[self._case.pending].items():
                setattr(*((other, "mine") if name == "other" else (header, name)), value)
            self._write(**AFTER)
            with session.no_autoflush:
                try:
                    self._case.run(session)
                except (LockNotSupported, sa.exc.NotSupportedError):
                    return ""  # not on this server
                except UnsavedChanges:
                    return self._refused(session, header)
                found = self._found(session, header)
                session.expire(other)
                del lines
                return found or self._written(session, header)

    def _write(self, **values: Any) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._table.update().values(mine="old"))
            connection.execute(self._table.update().where(self._table.c.id == 1).values(**values))
            line = self._line.__table__
            value = 10 if values == BEFORE else 15
            connection.execute(line.update().where(line.c.id == 1).values(value=value))

    def _refused(self, session: LockingSession, header: Any) -> str:
        pending = PENDING[self._case.pending]
        mixed = self._case.ask in (
            "attributes",
            "Bundle",
            "Bundles",
            "table",
        )  # any change is refused
        if not (self._case.collides or (mixed and pending)):
            return "refused for nothing"
        if (self._entity, (1,)) in session.held_locks:
            return "refused, and held"
        lost = {name for name, value in pending.items() if getattr(header, name, value) != value}
        return f"lost {lost}" if lost else ""

    def _found(self, session: LockingSession, header: Any) -> str:
        """Return what is wrong with the objects after the lock."""
        held = (self._entity, (1,)) in session.held_locks
        if held != (self._case.ask in KNOWN):
            return "held" if held else "not held"
        if self._case.collides:
            return "not refused"
        loaded, pending = sa.inspect(header).dict, sa.inspect(header).committed_state
        now = {**AFTER, "sum_of_lines": 35}
        old = {
            name
            for name in now
            if name in loaded and name not in pending and loaded[name] != now[name]
        }
        if old:
            return f"old: {sorted(old)}"
        if loaded.get("given") not in (None, 41, 35):
            return f"old: given {loaded['given']}"
        lost = {
            name
            for name, value in PENDING[self._case.pending].items()
            if name in COLUMNS and loaded.get(name) != value
        }
        if lost:
            return f"lost: {lost}"
        values = [line.value for line in header.lines]
        return "" if values == [15, 20] else f"old lines: {values}"

    def _written(self, session: LockingSession, header: Any) -> str:
        """Return what is wrong in the database after a change under the lock."""
        expected = {**AFTER, **PENDING[self._case.pending]}
        expected.pop("other", None)
        try:
            header.total += 10
            session.commit()
        except UnlockedWrite:
            permitted = self._case.kind == "plain" or (self._entity, (1,)) in session.held_locks
            return "not permitted" if permitted else ""
        except sa.exc.InvalidRequestError as error:
            return "" if "raiseload" in str(error) else f"raised {error}"
        with self._engine.connect() as connection:
            columns = (self._table.c[name] for name in COLUMNS)
            row = connection.execute(sa.select(*columns).where(self._table.c.id == 1)).one()
        expected["total"] += 10
        found = row._asdict()
        return "" if found == expected else f"database: {found}"


def _wrong(engine: sa.Engine, cases: Iterable[Case]) -> str:
    found = ((case, Trial(engine, case).outcome()) for case in cases)
    return "\n".join(f"{case}: {wrong}" for case, wrong in found if wrong)


def test_some_cases(engine: sa.Engine) -> None:
    seed = random.SystemRandom().randrange(2**32)
    cases = random.Random(seed).sample([*all_cases()], _IN_A_RUN)
    wrong = _wrong(engine, cases)
    assert not wrong, f"seed {seed}\n{wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("part", [12, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_all_cases(engine: sa.Engine, database: Database, part: int) -> None:
    """CI takes every twelfth case on each database, and others on the next database."""
    first = [*MATRIX].index(database.column) % part
    wrong = _wrong(engine, [*all_cases()][first::part])
    assert not wrong, wrong
