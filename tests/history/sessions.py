"""Real sessions on the tables of the stress fixture; what they read and write is recorded.

A value in the database names its version: ``writer * 100 + number``, 0 for the first.  The total of
a header is such a value too, and no sum.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sqlalchemy import Engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from sa_doclock.cli.fixture.model import Detail, Document
from sa_doclock.cli.fixture.tables import fill
from tests.history.record import History, Item, Outcome, Read, Transaction, Version, Write

DOCUMENTS = (1, 2)
NAMES = ("N0", "N1", "N2")
THREADS = 8
TRANSACTIONS = 20  # of each thread
READS = (LockOptions.SharedRead, LockOptions.SnapshotRead)


@dataclass
class Run:
    """What all threads share.

    :ivar locks: False: plain reads in place of locks, and no guard.
    :ivar meet: called once in each transaction, between its reads and its writes.
    """

    engine: Engine
    locks: bool
    meet: Callable[[], object]
    tick: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    number: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    errors: list[DBAPIError] = field(default_factory=list)

    def sessions(self) -> sessionmaker[LockingSession]:
        return sessionmaker(
            self.engine, class_=LockingSession, guard="raise" if self.locks else "off"
        )


def played(engine: Engine, *, locks: bool) -> tuple[History, list[DBAPIError]]:
    """Let the threads run; return what they did, and the errors that ended a transaction.

    Without locks all threads meet in each transaction after they have read, so that what goes
    wrong then goes wrong in every run.
    """
    fill(engine, {number: dict.fromkeys(NAMES, 0) for number in DOCUMENTS})
    together = threading.Barrier(THREADS)
    run = Run(engine, locks, (lambda: None) if locks else (lambda: together.wait(30)))
    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(lambda thread: _thread(run, thread), range(THREADS)))
    return History(itertools.chain.from_iterable(parts)), run.errors


def _thread(run: Run, thread: int) -> list[Transaction]:
    chance = random.Random(thread)
    return [_transaction(run, chance) for _ in range(TRANSACTIONS)]


def _transaction(run: Run, chance: random.Random) -> Transaction:
    """Read one document or both; then, in most cases, write a part of one, and commit."""
    writes, aborts = chance.random() < 0.6, chance.random() < 0.1
    documents = sorted(chance.sample(DOCUMENTS, chance.choice((1, 1, 2))))
    target, parts = chance.choice(documents), ["", *chance.sample(NAMES, 2)]
    lock = LockOptions.ForUpdate if writes else chance.choice(READS)
    done = Transaction(run.number(), run.tick(), 0)
    met = False
    try:
        with run.sessions()() as session:
            found = session.get_documents(
                Document, documents, lock if run.locks else LockOptions.None_
            )
            for document in found:
                note(done, document)
            met = True
            run.meet()
            if writes:
                (one,) = (document for document in found if document.id == target)
                write(session, done, one, parts)
            else:
                read_again(session, done, documents)
            if aborts:
                done.outcome = Outcome.ABORTED
                session.rollback()
            else:
                session.commit()
    except DBAPIError as error:
        done.outcome = Outcome.ABORTED
        run.errors.append(error)
        if not met:  # the others count on it
            run.meet()
    done.ended = run.tick()
    return done


def note(done: Transaction, document: Document) -> None:
    done.operations.append(Read(Item(document.id), _version(document.total)))
    done.operations += [
        Read(Item(document.id, name), _version(value)) for name, value in document.values().items()
    ]


def read_again(session: LockingSession, done: Transaction, documents: Sequence[int]) -> None:
    """From the database, past the objects that the session has."""
    headers = select(Document.id, Document.total).where(Document.id.in_(documents))
    details = select(Detail.document_id, Detail.name, Detail.value)
    for number, total in session.execute(headers):
        done.operations.append(Read(Item(number), _version(total)))
    for number, name, value in session.execute(details.where(Detail.document_id.in_(documents))):
        done.operations.append(Read(Item(number, name), _version(value)))


def write(
    session: LockingSession, done: Transaction, document: Document, parts: Sequence[str]
) -> None:
    """Two times, so that there is a version in between which nobody else must see."""
    details = {detail.name: detail for detail in document.details}
    for count in (1, 2):
        for part in parts:
            over = _version(details[part].value if part else document.total)
            version = Version(done.number, count)
            done.operations.append(Write(Item(document.id, part), version, over))
            if part:
                details[part].value = _value(version)
            else:
                document.total = _value(version)
        session.flush()


def _value(version: Version) -> int:
    return version.writer * 100 + version.number


def _version(value: int) -> Version:
    return Version(*divmod(value, 100))
