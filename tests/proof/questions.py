"""Facts that no page tells for certain, asked of the server itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import LockStatements
from tests.proof.page import Part, made, table
from tests.proof.tables import Base, Row, tables

FOR_UPDATE = LockOptions.ForUpdate
_PAIRS = 1_000
_SECONDS = 2.0


class Pair(Base):
    __tablename__ = "doclock_proof_pair"
    first: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    second: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


def savepoint(engine: sa.Engine) -> str:
    """Lock a row in a savepoint, roll back to it, and see whether another session gets the row."""
    with LockingSession(engine) as session, LockingSession(engine) as other:
        session.get_one_entity(Row, 2, FOR_UPDATE)  # the transaction goes on in any case
        nested = session.begin_nested()
        session.get_one_entity(Row, 1, FOR_UPDATE)
        nested.rollback()
        try:
            other.get_entity(Row, 1, FOR_UPDATE | LockOptions.NoWait)
        except LockNotAvailable:
            return "no: the row stays locked"
        return "yes"


def changed_row(engine: sa.Engine) -> str:
    """Change a row without a lock, and see what SkipLocked does with it."""
    with engine.connect() as connection, LockingSession(engine) as session:
        connection.execute(sa.update(Row).where(Row.id == 1).values(total=5))
        rows = session.entity_set(Row, FOR_UPDATE | LockOptions.SkipLocked, lock_timeout=_SECONDS)
        try:
            found = [row.id for row in session.scalars(rows)]
        except LockNotAvailable:
            return f"no: it waits, here {_SECONDS:g} s"
        finally:
            connection.rollback()
    return "yes" if found == [2] else f"**no: it returns {found}**"


def many_pairs(engine: sa.Engine) -> str:
    """Lock 1,000 composite keys by one statement, past the limit of the dialect."""
    strategy = strategy_for(engine)
    keys = [(1, number) for number in range(_PAIRS)]
    with _limit(strategy.statements, 2 * _PAIRS), LockingSession(engine) as session:
        begun = time.perf_counter()
        found = session.get_entities(Pair, keys, FOR_UPDATE)
        return f"{len(found)} in {time.perf_counter() - begun:.1f} s"


def range_modes(engine: sa.Engine) -> str:
    """Lock a range, and return how the server spells its mode."""
    if engine.dialect.name != "mssql":
        return "not asked here"
    serializable = engine.execution_options(isolation_level="SERIALIZABLE")
    query = "SELECT id FROM doclock_proof WITH (UPDLOCK) WHERE id BETWEEN 1 AND 2"
    modes = "SELECT DISTINCT request_mode FROM sys.dm_tran_locks WHERE request_session_id = @@SPID"
    with serializable.connect() as connection:
        connection.exec_driver_sql(query).all()
        return ", ".join(sorted(connection.exec_driver_sql(modes).scalars()))


QUESTIONS: Mapping[str, Callable[[sa.Engine], str]] = {
    "Does a rollback to a savepoint release the locks taken in it?": savepoint,
    "Does SkipLocked leave out a row that another transaction has only changed?": changed_row,
    "Can one statement lock 1,000 composite keys?": many_pairs,
    "The modes of a lock of a range": range_modes,
}


def questions(engine: sa.Engine) -> Part:
    """Return the answers; none of them is right or wrong, and one that fails stops no other."""
    rows = []
    with tables(engine):
        with engine.begin() as connection:
            pairs = [{"first": 1, "second": number} for number in range(_PAIRS)]
            connection.execute(sa.insert(Pair), pairs)
        for question, ask in QUESTIONS.items():
            rows.append({"Question": question, "Answer": _answer(engine, ask)})
    return Part("Questions", list(table(rows)))


def _answer(engine: sa.Engine, ask: Callable[[sa.Engine], str]) -> str:
    return made("", lambda: Part("", [ask(engine)])).lines[0]


@contextmanager
def _limit(statements: LockStatements, parameters: int) -> Iterator[None]:
    """Let a statement have so many parameters of composite keys."""
    setattr(statements, "max_parameters_of_or", parameters)  # noqa: B010  # a fact of its class
    try:
        yield
    finally:
        delattr(statements, "max_parameters_of_or")
