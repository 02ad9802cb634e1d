"""The ways in which a client takes its lock, changes folders, and commits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, run_transaction
from tests.reliability.faults.model import FOLDERS, Folder, Log, change, look

FOR_UPDATE = LockOptions.ForUpdate


def go_on() -> None:
    """Do nothing between a change and its commit."""


@dataclass
class Desk:
    """The objects that a client works with.

    :ivar pause: called between a change and its commit.
    """

    factory: sessionmaker[LockingSession]
    log: Log
    chance: random.Random
    pause: Callable[[], None] = field(default=go_on)

    def folder(self) -> int:
        return self.chance.choice(FOLDERS)

    def two_folders(self) -> list[int]:
        return self.chance.sample(FOLDERS, 2)


def by_get_entity(desk: Desk) -> None:
    attempt = desk.log.begin(desk.log.new_update())
    with desk.factory() as session:
        folder = session.get_one_entity(Folder, desk.folder(), FOR_UPDATE)
        look(desk.log, attempt, [folder])
        change(session, attempt, [folder], desk.chance)
        desk.pause()
        session.save_changes()
        desk.log.acknowledge(attempt)


def by_get_documents(desk: Desk) -> None:
    attempt = desk.log.begin(desk.log.new_update())
    with desk.factory() as session:
        folders = session.get_documents(Folder, desk.two_folders(), FOR_UPDATE)
        look(desk.log, attempt, folders)
        change(session, attempt, folders, desk.chance)
        session.flush()
        desk.pause()
        session.save_changes()
        desk.log.acknowledge(attempt)


def by_locked(desk: Desk) -> None:
    attempt = desk.log.begin(desk.log.new_update())
    with desk.factory() as session:
        with session.locked(Folder, desk.folder()) as folder:
            look(desk.log, attempt, [folder])
            change(session, attempt, [folder], desk.chance)
            desk.pause()
        desk.log.acknowledge(attempt)


def by_entity_set(desk: Desk) -> None:
    attempt = desk.log.begin(desk.log.new_update())
    with desk.factory() as session:
        wanted = session.entity_set(Folder, FOR_UPDATE).where(Folder.id.in_(desk.two_folders()))
        folders = session.scalars(wanted.order_by(Folder.id)).all()
        look(desk.log, attempt, folders)
        change(session, attempt, folders, desk.chance)
        desk.pause()
        session.commit()
        desk.log.acknowledge(attempt)


def by_key(desk: Desk) -> None:
    """Take a named lock too, in a savepoint of a separate transaction."""
    attempt = desk.log.begin(desk.log.new_update())
    with desk.factory() as session:
        with session.begin():
            session.lock_key("faults")
            with session.begin_nested():
                folder = session.get_document(Folder, desk.folder(), FOR_UPDATE)
                assert folder is not None
                look(desk.log, attempt, [folder])
                change(session, attempt, [folder], desk.chance)
            desk.pause()
        desk.log.acknowledge(attempt)


def by_run_transaction(desk: Desk) -> None:
    """Lock in random order, so that others may deadlock with it."""
    log, update = desk.log, desk.log.new_update()
    last = log.begin(update)

    def transfer(session: LockingSession) -> None:
        nonlocal last
        if last.transaction.operations:
            log.give_up(last)
            last = log.begin(update)
        folders = [
            session.get_one_entity(Folder, folder, FOR_UPDATE) for folder in desk.two_folders()
        ]
        look(log, last, folders)
        change(session, last, folders, desk.chance)
        desk.pause()

    run_transaction(desk.factory, transfer, backoff=0.01)
    log.acknowledge(last)


def read(desk: Desk) -> None:
    attempt = desk.log.begin(update=0)
    lock = desk.chance.choice((LockOptions.SharedRead, LockOptions.SnapshotRead))
    with desk.factory() as session:
        folders = session.get_documents(Folder, desk.two_folders(), lock)
        look(desk.log, attempt, folders)
        desk.pause()
        session.release_locks()
        desk.log.acknowledge(attempt)


WAYS: Mapping[str, Callable[[Desk], None]] = {
    "get_entity": by_get_entity,
    "get_documents": by_get_documents,
    "locked": by_locked,
    "entity_set": by_entity_set,
    "lock_key": by_key,
    "run_transaction": by_run_transaction,
    "read": read,
}
