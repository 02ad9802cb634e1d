"""The ways in which a program reads documents under a lock, and ends its transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeAlias

from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, run_transaction
from sa_doclock.tools.cli.workload.tables import Document

Sessions: TypeAlias = "sessionmaker[LockingSession]"
Body = Callable[[LockingSession, Sequence[Document]], None]
"""The work on the documents; it may begin again, if the way repeats it."""
Way = Callable[[Sessions, Sequence[int], LockOptions, Body], None]
Reader = Callable[[LockingSession, Sequence[int], LockOptions], Sequence[Document]]


def _reading(read: Reader) -> Way:
    """A session that reads; it saves after ForUpdate, and lets go after a read."""

    def way(sessions: Sessions, numbers: Sequence[int], lock: LockOptions, body: Body) -> None:
        with sessions() as session:
            body(session, read(session, numbers, lock))
            if lock in (LockOptions.SharedRead, LockOptions.SnapshotRead):
                session.release_locks()
            else:
                session.save_changes()

    return way


def _locked(sessions: Sessions, numbers: Sequence[int], lock: LockOptions, body: Body) -> None:
    with sessions() as session, ExitStack() as blocks:
        found = [blocks.enter_context(session.locked(Document, number, lock)) for number in numbers]
        body(session, found)


def _run_transaction(
    sessions: Sessions, numbers: Sequence[int], lock: LockOptions, body: Body
) -> None:
    run_transaction(
        sessions, lambda session: body(session, session.get_entities(Document, numbers, lock))
    )


def _entity_set(
    session: LockingSession, numbers: Sequence[int], lock: LockOptions
) -> Sequence[Document]:
    statement = session.entity_set(Document, lock).where(Document.id.in_(numbers))
    return session.scalars(statement.order_by(Document.id)).all()


PLAIN: Mapping[str, Way] = {
    "get_entity": _reading(
        lambda session, numbers, lock: [
            session.get_one_entity(Document, number, lock) for number in numbers
        ]
    ),
    "get_document": _reading(
        lambda session, numbers, lock: [
            document
            for number in numbers
            if (document := session.get_document(Document, number, lock))
        ]
    ),
    "get_entities": _reading(
        lambda session, numbers, lock: session.get_entities(Document, numbers, lock)
    ),
    "get_documents": _reading(
        lambda session, numbers, lock: session.get_documents(Document, numbers, lock)
    ),
    "entity_set": _reading(_entity_set),
}
"""The ways that read without a lock as well, and never begin again."""

WAYS: Mapping[str, Way] = {**PLAIN, "locked": _locked, "run_transaction": _run_transaction}
