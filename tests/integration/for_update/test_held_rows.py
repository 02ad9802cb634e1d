"""Locks of one row, as a product of ways to ask, options and pending changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    Bundle,
    DeclarativeBase,
    Load,
    Mapped,
    Session,
    aliased,
    column_property,
    defer,
    joinedload,
    lazyload,
    load_only,
    mapped_column,
    query_expression,
    relationship,
    selectinload,
    undefer,
    with_expression,
)

from lab.running.kept import KeptTables
from sa_doclock import LockingSession, LockNotSupported, UnlockedWrite, UnsavedChanges, document
from tests.support.databases import MATRIX, Database

pytestmark = [
    pytest.mark.read_committed,
    pytest.mark.not_databases("sqlite-journal"),  # its readers keep others from writing
    pytest.mark.filterwarnings("ignore:The Query.get"),
]


class Base(DeclarativeBase):
    pass


class _Columns:
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    remark: Mapped[str] = mapped_column(sa.String(20))
    mine: Mapped[str] = mapped_column(sa.String(20), default="old")
    note: Mapped[str] = mapped_column(sa.String(20), deferred=True, deferred_group="more")


class Plain(_Columns, Base):
    """A header that is not declared."""

    __tablename__ = "hr_plain"
    given: Mapped[int | None] = query_expression()
    lines: Mapped[list[PlainLine]] = relationship(order_by="PlainLine.id")


class PlainLine(Base):
    __tablename__ = "hr_plain_line"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    header_id: Mapped[int] = mapped_column(sa.ForeignKey("hr_plain.id"))
    value: Mapped[int]


@document(parts=("lines",))
class Declared(_Columns, Base):
    __tablename__ = "hr_declared"
    given: Mapped[int | None] = query_expression()
    lines: Mapped[list[DeclaredLine]] = relationship(order_by="DeclaredLine.id")


class DeclaredLine(Base):
    __tablename__ = "hr_declared_line"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    header_id: Mapped[int] = mapped_column(sa.ForeignKey("hr_declared.id"))
    value: Mapped[int]


class Beside(Base):
    """A second header in the row."""

    __tablename__ = "hr_beside"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(sa.String(20), default="b")


def _sum_of(header: Any, line: Any) -> Any:
    total = sa.select(sa.func.sum(line.value)).where(line.header_id == header.id)
    return column_property(total.correlate(header.__table__).scalar_subquery(), deferred=True)


Plain.sum_of_lines = _sum_of(Plain, PlainLine)
Declared.sum_of_lines = _sum_of(Declared, DeclaredLine)

CLASSES: dict[str, Any] = {"plain": Plain, "declared": Declared}
LINES: dict[Any, Any] = {Plain: PlainLine, Declared: DeclaredLine}
COLUMNS = ("total", "remark", "mine", "note")
BEFORE = {"total": 30, "remark": "old", "mine": "old", "note": "old"}
AFTER = {"total": 40, "remark": "new", "mine": "old", "note": "new"}
"""The columns as others change them: all but ``mine``."""

Options = Callable[[Any], Sequence[Any]]
OPTIONS: dict[str, Options] = {
    "none": lambda _: (),
    "load_only the key": lambda one: [load_only(one.id)],
    "load_only": lambda one: [load_only(one.remark)],
    "defer": lambda one: [defer(one.total)],
    "defer, raising": lambda one: [defer(one.total, raiseload=True)],
    "undefer": lambda one: [undefer(one.note), undefer(one.sum_of_lines)],
    "undefer_group": lambda one: [Load(one).undefer_group("more")],
    "defer all": lambda _: [defer("*")],
    "selectinload": lambda one: [selectinload(one.lines), load_only(one.mine)],
    "lazyload": lambda one: [lazyload(one.lines)],
    "with_expression": lambda one: [with_expression(one.given, one.total + 1)],
    "with_expression of a subquery": lambda one: [
        with_expression(one.given, _sum_again(one)),
        defer(one.total),
    ],
}


def _sum_again(one: Any) -> Any:
    line = aliased(LINES[sa.inspect(one).mapper.class_])
    return sa.select(sa.func.sum(line.value)).where(line.header_id == one.id).scalar_subquery()


class Asked(NamedTuple):
    """A lock as a program requests it.

    :ivar entity: the class to lock, or an alias of it.
    """

    entity: Any
    options: Options
    on_statement: Mapping[str, Any]
    on_execute: Mapping[str, Any]

    def of(self, entity: Any) -> Asked:
        """Return the same for another entity."""
        return self._replace(entity=entity)

    def made(self, *selected: Any) -> Any:
        """Return the locking SELECT of row 1, of the entity unless the options differ."""
        select: Any = sa.select(*(selected or (self.entity,))).where(self.entity.id == 1)
        if not selected or any(one is self.entity for one in selected):
            select = select.options(*self.options(self.entity))
        return select.execution_options(**self.on_statement).with_for_update()

    def all(self, session: LockingSession, statement: Any) -> Any:
        """Execute a statement, and return all its results."""
        found = session.execute(statement, execution_options=self.on_execute)
        return found.unique().all()

    def query(self, session: LockingSession) -> Any:
        """Return the entity's Query, with its lock."""
        options = {**self.on_statement, **self.on_execute}
        query = session.query(self.entity).options(*self.options(self.entity))
        return query.execution_options(**options).with_for_update()


def _two(session: LockingSession, asked: Asked, *, first: bool) -> None:
    classes = (asked.entity, Beside) if first else (Beside, asked.entity)
    asked.all(session, asked.made(*classes).where(Beside.id == asked.entity.id))


def _get(session: LockingSession, asked: Asked) -> None:
    options = {**asked.on_statement, **asked.on_execute}
    populate = bool(options.pop("populate_existing", False))
    session.get(
        asked.entity,
        1,
        options=asked.options(asked.entity),
        with_for_update=True,
        populate_existing=populate,
        execution_options=options,
    )


def _joined(session: LockingSession, asked: Asked) -> None:
    table: Any = asked.entity.__table__
    made = asked.made().options(joinedload(asked.entity.lines)).with_for_update(of=table)
    asked.all(session, made)


def _from_statement(session: LockingSession, asked: Asked) -> None:
    table: Any = asked.entity.__table__
    locked = sa.select(table.c.id, table.c.remark).where(table.c.id == 1).with_for_update()
    made: Any = sa.select(asked.entity).from_statement(locked)
    asked.all(session, made.execution_options(**asked.on_statement))


def _table(session: LockingSession, asked: Asked, *names: str) -> None:
    columns = asked.entity.__table__.c
    made = sa.select(*(columns[name] for name in names)).where(columns.id == 1)
    asked.all(session, made.with_for_update())


def _connection(session: LockingSession, asked: Asked) -> None:
    columns = asked.entity.__table__.c
    made = sa.select(columns.id, columns.total).where(columns.id == 1)
    session.connection().execute(made.with_for_update()).all()


Ask = Callable[[LockingSession, Asked], Any]

#: The row is known: it must be held, whatever the options.
KNOWN: dict[str, Ask] = {
    "scalars": lambda s, a: s.scalars(a.made(), execution_options=a.on_execute).unique().all(),
    "execute": lambda s, a: a.all(s, a.made()),
    "the first of two": lambda s, a: _two(s, a, first=True),
    "the second of two": lambda s, a: _two(s, a, first=False),
    "alias": lambda s, a: a.all(s, a.of(aliased(a.entity)).made()),
    "Query": lambda s, a: a.query(s).filter_by(id=1).one(),
    "Query.get": lambda s, a: a.query(s).get(1),
    "get": _get,
    "joinedload": _joined,
    "from_statement": _from_statement,
    "attributes": lambda s, a: a.all(s, a.made(a.entity.id, a.entity.remark)),
    "Bundle": lambda s, a: a.all(s, a.made(Bundle("row", a.entity.remark, a.entity.id))),
    "Bundles": lambda s, a: a.all(
        s, a.made(sa.literal(1), Bundle("row", Bundle("key", a.entity.id.label("key"))))
    ),
    "table": lambda s, a: _table(s, a, "total", "id"),
}

#: The session cannot tell which row is locked.
UNKNOWN: dict[str, Ask] = {
    "one": lambda s, a: a.all(s, a.made(sa.literal(1)).select_from(a.entity)),
    "column": lambda s, a: a.all(s, a.made(a.entity.total)),
    "function": lambda s, a: a.all(s, a.made(sa.func.abs(a.entity.id))),
    "column of the table": lambda s, a: _table(s, a, "total"),
    "connection": _connection,
    "EXISTS": lambda s, a: s.scalar(sa.select(a.made(a.entity.id).exists())),
    "count": lambda s, a: s.query(a.entity).filter_by(id=1).with_for_update().count(),
    "subquery": lambda s, a: a.all(s, sa.select(a.made(a.entity.total).subquery())),
    "beside another": lambda s, a: a.all(
        s,
        sa.select(Beside)
        .join(a.entity, a.entity.id == Beside.id)
        .where(Beside.id == 1)
        .with_for_update(),
    ),
}
ASKS = {**KNOWN, **UNKNOWN}
_WITHOUT_OPTIONS = ("from_statement", "attributes", "Bundle", "Bundles", "table")

#: Execution options of the statement, and of its execution.
POPULATE: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "": ({}, {}),
    "not populated": ({"populate_existing": False}, {}),
    "executed not populated": ({}, {"populate_existing": False}),
    "populated, executed not": ({"populate_existing": True}, {"populate_existing": False}),
    "populated": ({"populate_existing": True}, {}),
    "executed populated": ({}, {"populate_existing": True}),
}

#: Unflushed changes of the session.
PENDING: dict[str, Mapping[str, Any]] = {
    "clean": {},
    "another column": {"mine": "pending"},
    "the same column": {"total": 31},
    "a deferred column": {"note": "pending"},
    "both": {"mine": "pending", "remark": "pending"},
    "another row": {"other": "pending"},
}


class Case(NamedTuple):
    kind: str
    ask: str
    options: str
    populate: str
    pending: str

    def __str__(self) -> str:
        return ", ".join(filter(None, self))

    @property
    def collides(self) -> bool:
        """True if a pending change would overwrite another session's write."""
        changed = PENDING[self.pending]
        return any(AFTER[name] != BEFORE[name] for name in changed.keys() & AFTER.keys())

    def run(self, session: LockingSession) -> None:
        on_statement, on_execute = POPULATE[self.populate]
        asked = Asked(CLASSES[self.kind], OPTIONS[self.options], on_statement, on_execute)
        ASKS[self.ask](session, asked)


def all_cases() -> Iterator[Case]:
    """Yield all meaningful combinations."""
    for names in product(CLASSES, ASKS, OPTIONS, POPULATE, PENDING):
        case = Case(*names)
        takes_options = case.ask in KNOWN and case.ask not in _WITHOUT_OPTIONS
        if case.ask == "joinedload" and case.options in ("selectinload", "lazyload"):
            continue  # SQLAlchemy refuses to load the lines in two ways
        if takes_options or (case.options, case.populate) == ("none", ""):
            yield case


# --------------------------------------------------------------------------------------------------
# The session reads a held row under its lock: no value in the session is older than the lock.

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
    """Keep the tables until the last test of this file ends."""
    tables = KeptTables(Base.metadata, fill)
    yield tables
    tables.close()


@pytest.fixture
def engine(database: Database, kept: KeptTables) -> sa.Engine:
    kept.put_rows(database)
    innodb = database.name in ("mysql", "mariadb")
    return database.engine(**({"isolation_level": "READ COMMITTED"} if innodb else {}))


class Trial:
    """One case: the session's earlier state, the changes of others, and the database."""

    def __init__(self, engine: sa.Engine, case: Case) -> None:
        self._engine, self._case = engine, case
        self._entity: Any = CLASSES[case.kind]
        self._table: Any = self._entity.__table__
        self._line: Any = LINES[self._entity]

    def outcome(self) -> str:
        """Return the faults; empty if there are none."""
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
        """Return the faults of the objects after the lock."""
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
        """Return the faults in the database after a change under the lock."""
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
    """CI runs every twelfth case on each database, and other cases on the next database."""
    first = [*MATRIX].index(database.column) % part
    wrong = _wrong(engine, [*all_cases()][first::part])
    assert not wrong, wrong
