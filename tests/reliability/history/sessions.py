"""Versions in the tables of the stress fixture, written there and read back.

A value encodes its version: ``writer * 100 + number``, 0 for the first.  A header's total is such a
value too. One detail, the balance, makes the details add up to the total; it is not an item of the history.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession, LockOptions, run_transaction
from sa_doclock.tools.cli.workload.tables import Detail, Document, fill
from tests.reliability.history.record import (
    ABSENT,
    History,
    Item,
    Outcome,
    Read,
    Transaction,
    Version,
    Write,
)

BALANCE = "BALANCE"


def first_state(names: Iterable[str]) -> dict[str, int]:
    """Return the details of a new document."""
    return dict.fromkeys((*names, BALANCE), 0)


def note(done: Transaction, document: Document, names: Iterable[str]) -> None:
    """Record that the transaction read this document, and which details are missing."""
    _note(done, document.id, document.total, document.values(), names)


def read_again(
    session: Session, done: Transaction, documents: Sequence[int], names: Iterable[str]
) -> None:
    """Read from the database, without the session's objects."""
    headers = select(Document.id, Document.total).where(Document.id.in_(documents))
    details = select(Detail.document_id, Detail.name, Detail.value)
    totals = session.execute(headers).all()
    values = session.execute(details.where(Detail.document_id.in_(documents))).all()
    for number, total in totals:
        found = {name: value for document, name, value in values if document == number}
        _note(done, number, total, found, names)


def _note(
    done: Transaction, number: int, total: int, values: Mapping[str, int], names: Iterable[str]
) -> None:
    done.operations.append(Read(Item(number), version_of(total)))
    for name in names:
        version = version_of(values[name]) if name in values else ABSENT
        done.operations.append(Read(Item(number, name), version))


def set_total(done: Transaction, document: Document, nth: int) -> None:
    version = Version(done.number, nth)
    done.operations.append(Write(Item(document.id), version, version_of(document.total)))
    document.total = value_of(version)


def set_detail(done: Transaction, document: Document, name: str, nth: int) -> None:
    """Write a detail; insert it if it is missing."""
    version, detail = Version(done.number, nth), _detail(document, name)
    over = version_of(detail.value) if detail else ABSENT
    done.operations.append(Write(Item(document.id, name), version, over))
    if detail:
        detail.value = value_of(version)
    else:
        document.details.append(Detail(name=name, value=value_of(version)))


def delete_detail(done: Transaction, document: Document, name: str, nth: int) -> None:
    """Delete a detail if it exists."""
    if detail := _detail(document, name):
        version, over = Version(done.number, nth), version_of(detail.value)
        done.operations.append(Write(Item(document.id, name), version, over, gone=True))
        document.details.remove(detail)


def balance(document: Document) -> None:
    """Make the details add up to the total."""
    found = _detail(document, BALANCE)
    assert found is not None  # nobody deletes it
    found.value += document.total - sum(document.values().values())


def final_state(engine: Engine) -> dict[Item, Version]:
    """Return the final state of the database."""
    with engine.connect() as connection:
        headers = connection.execute(select(Document.id, Document.total)).all()
        details = connection.execute(
            select(Detail.document_id, Detail.name, Detail.value).where(Detail.name != BALANCE)
        ).all()
    return {Item(number): version_of(total) for number, total in headers} | {
        Item(number, name): version_of(value) for number, name, value in details
    }


def value_of(version: Version) -> int:
    return version.writer * 100 + version.number


def version_of(value: int) -> Version:
    return Version(*divmod(value, 100))


def _detail(document: Document, name: str) -> Detail | None:
    return next((one for one in document.details if one.name == name), None)


# --------------------------------------------------------------------------------------------------
# How a program reads documents under a lock, and how it ends its transaction.

Sessions: TypeAlias = "sessionmaker[LockingSession]"
Body = Callable[[LockingSession, Sequence[Document]], None]
"""The work on the documents; it may begin again, if the way repeats it."""
Way = Callable[[Sessions, Sequence[int], LockOptions, Body], None]
Reader = Callable[[LockingSession, Sequence[int], LockOptions], Sequence[Document]]


def _reading(read: Reader) -> Way:
    """Return a way with a session that reads; it saves after ForUpdate, and releases its locks after a read."""

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


# --------------------------------------------------------------------------------------------------
# Real sessions on the stress fixture's tables, with recorded reads and writes.

DOCUMENTS = (1, 2)
NAMES = ("N0", "N1", "N2")
THREADS = 8
TRANSACTIONS = 20  # of each thread
READS = (LockOptions.SharedRead, LockOptions.SnapshotRead)


class Undone(Exception):
    """The transaction must roll back."""


@dataclass
class Run:
    """The state that all threads share.

    :ivar locks: False: plain reads in place of locks, and no guard.
    :ivar meet: called once in each transaction, between its reads and its writes.
    """

    engine: Engine
    locks: bool
    meet: Callable[[], object]
    tick: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    number: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    done: list[Transaction] = field(default_factory=list)
    ways: set[str] = field(default_factory=set)
    errors: list[SQLAlchemyError] = field(default_factory=list)

    def sessions(self) -> sessionmaker[LockingSession]:
        guard = "raise" if self.locks else "off"
        return sessionmaker(self.engine, class_=LockingSession, guard=guard)

    def history(self) -> History:
        return History(self.done, final_state(self.engine))


class Task(NamedTuple):
    """The random choices for one transaction.

    :ivar changes: the details to write, and whether the last write deletes each; empty for a read.
    """

    way: str
    documents: Sequence[int]
    lock: LockOptions
    target: int
    changes: Sequence[tuple[str, bool]]
    undo: bool


def played(engine: Engine, *, locks: bool) -> Run:
    """Run the threads.

    Without locks, all threads meet in each transaction after their reads, so that every run
    goes wrong in the same way.
    """
    fill(engine, {number: first_state(NAMES) for number in DOCUMENTS})
    together = threading.Barrier(THREADS)
    run = Run(engine, locks, (lambda: None) if locks else (lambda: together.wait(30)))
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda thread: _live(run, thread), range(THREADS)):
            pass
    return run


def _live(run: Run, thread: int) -> None:
    chance = random.Random(thread)
    for _ in range(TRANSACTIONS):
        task = _drawn(chance, WAYS if run.locks else PLAIN)
        run.ways.add(task.way)
        _Attempt(run, task).carry_out()


def _drawn(chance: random.Random, ways: Iterable[str]) -> Task:
    writes = chance.random() < 0.6
    documents = sorted(chance.sample(DOCUMENTS, chance.choice((1, 1, 2))))
    changes = [(name, chance.random() < 0.4) for name in chance.sample(NAMES, 2)]
    return Task(
        way=chance.choice(sorted(ways)),
        documents=documents,
        lock=LockOptions.ForUpdate if writes else chance.choice(READS),
        target=chance.choice(documents),
        changes=changes if writes else (),
        undo=chance.random() < 0.1,
    )


class _Attempt:
    """One task; if the way starts over, each attempt is a separate transaction."""

    def __init__(self, run: Run, task: Task) -> None:
        self._run = run
        self._task = task
        self._done = self._begun()
        self._met = False

    def carry_out(self) -> None:
        run, task = self._run, self._task
        lock = task.lock if run.locks else LockOptions.None_
        try:
            WAYS[task.way](run.sessions(), task.documents, lock, self._work)
        except (SQLAlchemyError, Undone) as error:
            self._end(Outcome.ABORTED)
            if isinstance(error, SQLAlchemyError):
                run.errors.append(error)
            if not self._met:  # the others count on it
                run.meet()
        else:
            self._end(Outcome.COMMITTED)

    def _begun(self) -> Transaction:
        return Transaction(self._run.number(), self._run.tick(), 0)

    def _end(self, outcome: Outcome) -> None:
        self._done.outcome, self._done.ended = outcome, self._run.tick()
        self._run.done.append(self._done)

    def _work(self, session: LockingSession, found: Sequence[Document]) -> None:
        if self._done.operations:  # an attempt failed
            self._end(Outcome.ABORTED)
            self._done = self._begun()
        run, task, done = self._run, self._task, self._done
        for document in found:
            note(done, document, NAMES)
        self._met = True
        run.meet()
        if task.changes:
            target = next(document for document in found if document.id == task.target)
            _change(session, done, target, task.changes)
        else:
            read_again(session, done, task.documents, NAMES)
        if task.undo:
            raise Undone
        done.committing = run.tick()


def _change(
    session: LockingSession,
    done: Transaction,
    document: Document,
    changes: Sequence[tuple[str, bool]],
) -> None:
    """Write twice, so that there is an intermediate version that no other session may see."""
    for nth in (1, 2):
        set_total(done, document, nth)
        for name, deleted in changes:
            if deleted and nth == 2:
                delete_detail(done, document, name, nth)
            else:
                set_detail(done, document, name, nth)
        balance(document)
        session.flush()
