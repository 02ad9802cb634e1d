"""sa_doclock, with its defaults and with options."""

from __future__ import annotations

import inspect
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

import sa_doclock
from benchmarks.lab.figures import Absent
from benchmarks.lab.models import DeclaredDoc, Doc
from benchmarks.ways import Way, nothing
from benchmarks.ways.orm import change, total_of
from sa_doclock import LockingSession, LockOptions

ENTITY = "get_entity"
DECLARED = "get_entity, declared"
WHOLE = "get_document"
TIMED = "get_entity, lock_timeout"
PIPELINE = "get_entity, pipeline"
PIPELINE_WHOLE = "get_document, pipeline"
CLEAN = "get_entity, no needless ROLLBACK"
DEFAULT = "get_entity, default isolation level"
DEFAULT_CLEAN = "get_entity, default level, no needless ROLLBACK"


def doclock(
    engine: sa.Engine,
    name: str = ENTITY,
    *,
    entity: type[Any] = Doc,
    whole: bool = False,
    lock_timeout: float | None = None,
    **options: Any,
) -> Way:
    """:raises Absent: LockingSession does not support one of the options yet."""
    sessions = session_factory(engine, **options)

    def read(session: LockingSession, number: int, lock: LockOptions) -> Any:
        get = session.get_document if whole else session.get_entity
        return get(entity, number, lock, lock_timeout=lock_timeout)

    def update(number: int) -> None:
        with sessions() as session:
            doc = read(session, number, LockOptions.ForUpdate)  # kept, as in hand-written code
            change(doc)
            session.save_changes()

    def load(number: int) -> int:
        with sessions() as session:
            doc = read(session, number, LockOptions.SharedRead)
            total = total_of(doc)
            session.release_locks()
        return total

    return Way(name, update, load, nothing)


def declared(engine: sa.Engine) -> Way:
    return doclock(engine, DECLARED, entity=DeclaredDoc)


def whole(engine: sa.Engine) -> Way:
    return doclock(engine, WHOLE, entity=DeclaredDoc, whole=True)


def timed(engine: sa.Engine) -> Way:
    return doclock(engine, TIMED, lock_timeout=29.5)


def pipelined(engine: sa.Engine) -> Way:
    return doclock(engine, PIPELINE, **_pipeline(engine))


def pipelined_whole(engine: sa.Engine) -> Way:
    return doclock(engine, PIPELINE_WHOLE, entity=DeclaredDoc, whole=True, **_pipeline(engine))


def _pipeline(engine: sa.Engine) -> dict[str, Any]:
    if engine.dialect.name != "postgresql":
        raise Absent("pipeline=True is for PostgreSQL")
    return {"pipeline": True}


def session_factory(engine: sa.Engine, **options: Any) -> sessionmaker[LockingSession]:
    """:raises Absent: LockingSession does not support one of the options yet."""
    known = inspect.signature(LockingSession.__init__).parameters
    for option in options:
        if option not in known:
            raise Absent(f"LockingSession has no {option}= yet")
    return sessionmaker(engine, class_=LockingSession, **options)


def document_gate(**options: Any) -> Any:
    """:raises Absent: this version has no DocumentGate."""
    gate = getattr(sa_doclock, "DocumentGate", None)
    if gate is None:
        raise Absent("sa_doclock has no DocumentGate yet")
    return gate(**options)


def spare_rollbacks(engine: sa.Engine) -> dict[str, Any]:
    """Return engine options that avoid needless ROLLBACKs when a connection returns to its pool.

    :raises Absent: this database has no such option, or not yet.
    """
    if engine.dialect.name not in ("mysql", "mariadb"):
        raise Absent("skip_redundant_rollback() is for MySQL and MariaDB")
    options = getattr(sa_doclock, "skip_redundant_rollback", None)
    if options is None:
        raise Absent("sa_doclock has no skip_redundant_rollback() yet")
    found: dict[str, Any] = options()
    return found
