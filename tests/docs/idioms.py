"""The table of docs/adopting.md: common idioms for exclusion, and their effect on each database.

Measured on real databases.  ``python -m lab.servers postgresql mysql mariadb --for -- python -m
tests.docs.idioms`` measures again and writes the figures; ``python -m tests.docs.tables`` then writes the table.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import CompileError, DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import DocLockError, LockingSession, LockNotAvailable
from tests.docs.exclusion import NAMES
from tests.docs.pages import ROOT

FIGURES: Final = ROOT / "tests" / "docs" / "idioms.json"
CLASSES: Final[Mapping[str, type[Session]]] = {"here": LockingSession, "plain": Session}
LIMITS: Final[Mapping[str, tuple[str, ...]]] = {
    "postgresql": ("SET lock_timeout = '100ms'",),
    "mysql": ("SET SESSION innodb_lock_wait_timeout = 1", "SET SESSION lock_wait_timeout = 1"),
    "mariadb": ("SET SESSION innodb_lock_wait_timeout = 1", "SET SESSION lock_wait_timeout = 1"),
    "sqlite": ("PRAGMA journal_mode = WAL", "PRAGMA busy_timeout = 50"),
}
"""The seconds that a statement waits for a lock in the measurement."""

Measured = Mapping[str, Mapping[str, str]]
"""By idiom, then by class of the session: the result."""


def options_of(name: str) -> dict[str, str]:
    """Return the engine's options, which docs/adopting.md requires before anything else."""
    return {"isolation_level": "READ COMMITTED"} if name in ("mysql", "mariadb") else {}


class Base(DeclarativeBase):
    """The table of the measurement."""


class Order(Base):
    """A row with an amount."""

    __tablename__ = "lk_idioms"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


ORDERS = Base.metadata.tables["lk_idioms"].to_metadata(sa.MetaData())


class Versioned(DeclarativeBase):
    """The base of the class with a version."""


class VersionedOrder(Versioned):
    """The same row, with a version."""

    __table__ = ORDERS.to_metadata(Versioned.metadata)
    __mapper_args__ = {"version_id_col": __table__.c.version}  # noqa: RUF012  # as SQLAlchemy has it


class Busy(Exception):
    """Another session holds the row."""


class Changed(Exception):
    """The UPDATE found no row."""


def _first(session: Session, statement: Any) -> Any:
    return session.scalars(statement.where(Order.id == 1)).one()


def _add_ten(_session: Session, order: Any) -> None:
    order.total += 10


def _set(session: Session, total: int) -> None:
    session.execute(sa.update(Order).where(Order.id == 1).values(total=total + 10))


def _nothing(session: Session, kept: Any) -> None:
    """Do nothing: no further step is needed."""


@dataclass(frozen=True)
class Idiom:
    """The code of a program in two halves: its first step, and how it saves ten more."""

    write: str
    better: str
    take: Callable[[Session], Any]
    save: Callable[[Session, Any], None] = _add_ten


def _refresh(session: Session) -> Any:
    order = session.get_one(Order, 1)
    session.refresh(order, with_for_update=True)
    return order


def _cte(session: Session) -> Any:
    chosen = sa.select(Order.id).where(Order.id == 1).with_for_update().cte()
    return session.scalars(sa.select(Order).join(chosen, chosen.c.id == Order.id)).one()


def _columns(session: Session) -> int:
    return int(session.scalars(sa.select(Order.total).where(Order.id == 1).with_for_update()).one())


def _core(session: Session) -> int:
    return int(
        session.execute(sa.select(ORDERS).where(ORDERS.c.id == 1).with_for_update()).one().total
    )


def _advisory(session: Session) -> Any:
    session.execute(sa.select(sa.func.pg_advisory_xact_lock(42)))
    return session.get_one(Order, 1)


def _get_lock(session: Session) -> Any:
    if session.scalar(sa.select(sa.func.get_lock("order-1", 0))) != 1:
        raise Busy
    return session.get_one(Order, 1)


def _lock_table(session: Session) -> Any:
    session.execute(sa.text("LOCK TABLE lk_idioms IN EXCLUSIVE MODE"))
    return session.get_one(Order, 1)


def _serializable(session: Session) -> Any:
    session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
    return session.get_one(Order, 1)


def _seen(session: Session) -> tuple[int, int]:
    total, version = session.execute(
        sa.select(Order.total, Order.version).where(Order.id == 1)
    ).one()
    return total, version


def _compare_and_set(session: Session, seen: tuple[int, int]) -> None:
    total, version = seen
    changed = sa.update(Order).where(Order.id == 1, Order.version == version)
    if session.execute(changed.values(total=total + 10, version=version + 1)).rowcount == 0:  # type: ignore[attr-defined]
        raise Changed


def _upsert(session: Session) -> None:
    session.execute(
        sa.text(
            "INSERT INTO lk_idioms (id, total, version) VALUES (1, 10, 1)"
            " ON CONFLICT (id) DO UPDATE SET total = lk_idioms.total + 10"
        )
    )


def _immediate(session: Session) -> Any:
    session.execute(sa.text("BEGIN IMMEDIATE"))
    return session.get_one(Order, 1)


def _mutex(session: Session) -> Any:
    threading.Lock().acquire()  # each process has its own lock
    return session.get_one(Order, 1)


def _file(session: Session) -> Any:
    file = os.open(Path(tempfile.gettempdir()) / f"lk_idioms.{os.getpid()}", os.O_CREAT | os.O_RDWR)
    session.info["file"] = file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy from None
    return session.get_one(Order, 1)


_QUEUE = sa.select(Order).where(Order.version == 1).order_by(Order.id).limit(1)
_LOCK = "`session.locked(Order, 42)`"
IDIOMS: Final[Mapping[str, Idiom]] = {
    "select": Idiom(
        "`select(Order)...with_for_update()`",
        f"is right; {_LOCK} also commits, and has a timeout",
        lambda s: _first(s, sa.select(Order).with_for_update()),
    ),
    "query": Idiom(
        "`session.query(Order)...with_for_update()`",
        "the same",
        lambda s: s.query(Order).filter_by(id=1).with_for_update().one(),
    ),
    "get": Idiom(
        "`session.get(Order, 42, with_for_update=True)`",
        "`session.get_entity(Order, 42, LockOptions.ForUpdate)`",
        lambda s: s.get_one(Order, 1, with_for_update=True),
    ),
    "refresh": Idiom(
        "`session.refresh(order, with_for_update=True)`",
        "`session.lock(order)`: it also reads the lines again, and refuses a pending change, which "
        "`refresh()` discards",
        _refresh,
    ),
    "core": Idiom(
        "`select(orders_table)...with_for_update()`",
        "an entity, which is read again under the lock; rows of a table permit a write if you select their keys",
        _core,
        _set,
    ),
    "columns": Idiom(
        "`select(Order.total)...with_for_update()`",
        "an entity, or its key too: rows without it are not in `held_locks`, and permit no write",
        _columns,
        _set,
    ),
    "cte": Idiom(
        "`with_for_update()` within a CTE or subquery",
        "`with_lock(select(Order).join(...))`: the lock on the statement itself",
        _cte,
    ),
    "nowait": Idiom(
        "`with_for_update(nowait=True)`",
        "`ForUpdate \\| NoWait`, or `lock_timeout=2`: LockNotAvailable on each database",
        lambda s: _first(s, sa.select(Order).with_for_update(nowait=True)),
    ),
    "skip-locked": Idiom(
        "`.limit(1).with_for_update(skip_locked=True)`, for each queue",
        "[`claim_each(..., one_per=Job.queue)`](claiming.md), which also works on SQLite",
        lambda s: s.scalars(_QUEUE.with_for_update(skip_locked=True)).one(),
    ),
    "key-share": Idiom(
        "`with_for_update(read=True, key_share=True)`",
        "nothing for a foreign key: the database takes this lock itself. Otherwise SharedRead. Do not change the row "
        "under this lock",
        lambda s: _first(s, sa.select(Order).with_for_update(read=True, key_share=True)),
    ),
    "advisory": Idiom(
        "`select(func.pg_advisory_xact_lock(42))`",
        '[`session.lock_key("order:42")`](named-locks.md), or the row itself',
        _advisory,
    ),
    "get-lock": Idiom(
        '`select(func.get_lock("order-42", 5))`',
        "`session.lock_key()`, which ends with the transaction, not with the connection",
        _get_lock,
    ),
    "lock-table": Idiom(
        "`LOCK TABLE orders IN EXCLUSIVE MODE`",
        "`lock_key()` if there is no row to lock; `get_or_create_entity()` if a row may be missing",
        _lock_table,
    ),
    "serializable": Idiom(
        "SERIALIZABLE and a retry loop",
        "[`run_transaction()`](retrying.md) is the loop. For one document a lock is cheaper",
        _serializable,
    ),
    "version": Idiom(
        "`version_id_col`",
        "is right. [`version=`](versions.md) compares with the version that the *user* saw, under the lock",
        lambda s: s.get_one(VersionedOrder, 1),
    ),
    "compare-and-set": Idiom(
        "`UPDATE ... WHERE version = :seen`",
        "is right if the program checks `rowcount`; `version=` if a document has lines",
        _seen,
        _compare_and_set,
    ),
    "upsert": Idiom(
        "`INSERT ... ON CONFLICT DO UPDATE`",
        "is right; `get_or_create_entity()` on every database, with the object",
        _upsert,
        _nothing,
    ),
    "relative": Idiom(
        "`UPDATE ... SET total = total + 10`",
        "is right, [within its limits](recipes/stock.md)",
        lambda s: s.execute(sa.update(Order).where(Order.id == 1).values(total=Order.total + 10)),
        _nothing,
    ),
    "no-lock": Idiom(
        "a SELECT, and then the UPDATE",
        f"{_LOCK}",
        lambda s: s.get_one(Order, 1),
    ),
    "mutex": Idiom(
        "`threading.Lock()`, `asyncio.Lock()`",
        f"{_LOCK}, for all processes. To queue in the process: [the gate](gate.md)",
        _mutex,
    ),
    "file": Idiom(
        "a lock file, a lock in Redis",
        f"{_LOCK}. A lock outside the database may end before the commit",
        _file,
    ),
    "immediate": Idiom(
        '`text("BEGIN IMMEDIATE")` on SQLite',
        "`LockOptions.ForUpdate`, which begins the transaction in this way",
        _immediate,
    ),
}


def measure(engine: sa.Engine) -> Measured:
    """Return the effect of each idiom on this database; the table exists and is empty."""
    _limit_waits(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(ORDERS), [{"id": n, "total": 0, "version": 1} for n in (1, 2)])
    return {
        name: {kind: _result(engine, made, idiom) for kind, made in CLASSES.items()}
        for name, idiom in IDIOMS.items()
    }


def _limit_waits(engine: sa.Engine) -> None:
    engine.dispose()

    @sa.event.listens_for(engine, "connect")
    def limit(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for statement in LIMITS[engine.dialect.name]:
            cursor.execute(statement)
        cursor.close()
        connection.commit()


def _result(engine: sa.Engine, made: type[Session], idiom: Idiom) -> str:
    with engine.begin() as connection:
        connection.execute(sa.update(ORDERS).values(total=0, version=1))
    with made(engine) as first, made(engine) as second:
        try:
            kept = idiom.take(first)
        except (DocLockError, CompileError) as error:
            return f"{type(error).__name__}"
        except DBAPIError:
            return "no such SQL"
        finally:
            _let_go(first, engine, keep=True)
        try:
            return _seen_by_others(engine, first, second, idiom, kept)
        finally:
            for session in (first, second):
                _let_go(session, engine)


def _let_go(session: Session, engine: sa.Engine, *, keep: bool = False) -> None:
    """Release everything that the end of a transaction does not release."""
    if keep:
        return
    if (file := session.info.pop("file", None)) is not None:
        os.close(file)
    session.rollback()
    if engine.dialect.name in ("mysql", "mariadb"):
        session.execute(sa.select(sa.func.release_lock("order-1")))
        session.rollback()


def _seen_by_others(
    engine: sa.Engine, first: Session, second: Session, idiom: Idiom, kept: Any
) -> str:
    if not _updates(engine, 1):
        return "locked" if _updates(engine, 2) else "locked, with all rows"
    end = _end(engine, first, idiom, kept)
    _let_go(first, engine)
    idiom.take(first)
    try:
        idiom.take(second)
    except (Busy, LockNotAvailable, DBAPIError):
        return f"the same code waits; an UPDATE of others passes: {end}"
    return f"no wait: {end}"


def _updates(engine: sa.Engine, ident: int) -> bool:
    """Return whether another program can change this row and commit."""
    row = ORDERS.c.id == ident
    try:
        with engine.begin() as other:
            if engine.dialect.name in ("mysql", "mariadb"):  # whose shortest wait is a second
                other.execute(sa.select(ORDERS).where(row).with_for_update(nowait=True))
            other.execute(
                sa.update(ORDERS)
                .where(row)
                .values(total=ORDERS.c.total + 1, version=ORDERS.c.version + 1)
            )
    except DBAPIError:
        return False
    return True


def _end(engine: sa.Engine, session: Session, idiom: Idiom, kept: Any) -> str:
    try:
        idiom.save(session, kept)
        session.commit()
    except Changed:
        return "its UPDATE finds no row"
    except (DBAPIError, StaleDataError) as error:
        return f"{type(error).__name__}"
    with engine.connect() as connection:
        total = connection.scalar(sa.select(ORDERS.c.total).where(ORDERS.c.id == 1))
    return "both are saved" if total == 11 else "**one change is lost**"


def figures() -> Mapping[str, Measured]:
    """Return the measured results, by database."""
    found: Mapping[str, Measured] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def table() -> Iterator[str]:
    """Yield the table."""
    yield "| You write | You get | Better |"
    yield "|---|---|---|"
    for name, idiom in IDIOMS.items():
        here = _by_result({db: found[name]["here"] for db, found in figures().items()})
        other = {
            db: found[name]["plain"]
            for db, found in figures().items()
            if found[name]["plain"] != found[name]["here"]
        }
        words = ". ".join(here)
        if other:
            words += f". *With a plain Session:* {'; '.join(_by_result(other))}"
        yield f"| {idiom.write} | {words} | {idiom.better} |"


def _by_result(results: Mapping[str, str]) -> Iterator[str]:
    """Yield each result with all databases that share it."""
    for result in dict.fromkeys(results.values()):
        names = [NAMES[db] for db, found in results.items() if found == result]
        reported = "" if len(names) == len(NAMES) else f"{', '.join(names)}: "
        yield f"{reported}{result}"


def main() -> None:
    """Measure on the databases that the environment names, and on SQLite; write the figures."""
    found = dict(figures()) if FIGURES.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        urls = {name: os.environ.get(f"SA_DOCLOCK_TEST_{name.upper()}_URL") for name in NAMES}
        urls["sqlite"] = f"sqlite:///{Path(folder) / 'idioms.db'}"
        for name, url in urls.items():
            if url is None:
                continue
            engine = sa.create_engine(url, **options_of(name))
            Base.metadata.drop_all(engine)
            Base.metadata.create_all(engine)
            found[name] = measure(engine)
            Base.metadata.drop_all(engine)
            engine.dispose()
    ordered = {name: found[name] for name in NAMES if name in found}
    FIGURES.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
