"""The folders that clients change under faults, and the log of their attempts and commits."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Engine, ForeignKey, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import DocLockError, LockingSession, LockMisuse, document
from tests.reliability.history.record import Item, Outcome, Read, Transaction, Version, Write

# --------------------------------------------------------------------------------------------------
# The documents that change under faults, and the marks that every update leaves.
#
# ``total`` is the sum of the values of the sheets, and of all deltas in the marks of the folder.
# ``writer`` is the number of the attempt that wrote a row last, for the history.

FOLDERS = (1, 2, 3, 4)
SHEETS = 3  # in each folder


class Base(DeclarativeBase):
    pass


@document
class Folder(Base):
    __tablename__ = "fl_folder"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int] = mapped_column(default=0)
    writer: Mapped[int] = mapped_column(default=0)
    sheets: Mapped[list[Sheet]] = relationship(
        cascade="all, delete-orphan", order_by="Sheet.number"
    )


class Sheet(Base):
    __tablename__ = "fl_sheet"
    folder_id: Mapped[int] = mapped_column(ForeignKey(Folder.id), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(default=0)
    writer: Mapped[int] = mapped_column(default=0)


class Mark(Base):
    """An attempt's change of a folder; inserted in the same transaction, and never changed again."""

    __tablename__ = "fl_mark"
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    folder_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    update: Mapped[int] = mapped_column("update_number")
    delta: Mapped[int]


def fill(connection: sa.Connection) -> None:
    """Insert the folders into otherwise empty tables."""
    for table in reversed(Base.metadata.sorted_tables):
        connection.execute(table.delete())
    rows = [{"id": folder, "total": 0, "writer": 0} for folder in FOLDERS]
    connection.execute(sa.insert(Folder), rows)
    sheets = [
        {"folder_id": folder, "number": number, "value": 0, "writer": 0}
        for folder in FOLDERS
        for number in range(SHEETS)
    ]
    connection.execute(sa.insert(Sheet), sheets)


# --------------------------------------------------------------------------------------------------
# The clients' attempts, the acknowledged commits, and the errors that reached the clients.


class Injected(BaseException):
    """An exception that a fault raises in a client, as Ctrl-C would; only the client catches it."""


@dataclass
class Attempt:
    """One transaction of a client.

    :ivar update: the number of its update; 0 if it only reads.
    :ivar marks: the intended changes of the total, by folder.
    :ivar commit_sent: whether the database may have received the COMMIT.
    """

    number: int
    update: int
    transaction: Transaction
    marks: dict[int, int] = field(default_factory=dict)
    commit_sent: bool = False

    @property
    def outcome(self) -> Outcome:
        return self.transaction.outcome

    @property
    def acknowledged(self) -> bool:
        return self.outcome is Outcome.COMMITTED


current: ContextVar[Attempt | None] = ContextVar("current", default=None)
"""The attempt that runs in this thread or task."""


@dataclass
class Log:
    """The log of one run; all of its clients append to it."""

    attempts: list[Attempt] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    foreign: list[BaseException] = field(default_factory=list)
    broken_reads: list[str] = field(default_factory=list)
    _tick: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    _ended: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def listening(self, engine: Engine, *, pipelined: bool = False) -> Iterator[None]:
        """Record when an attempt's COMMIT is about to be sent.

        :param pipelined: the sessions may send it with the last flush.
        """
        target, name = (LockingSession, "before_commit") if pipelined else (engine, "commit")
        event.listen(target, name, _note_commit)
        yield
        event.remove(target, name, _note_commit)

    def begin(self, update: int) -> Attempt:
        """Begin another attempt at this update in this thread or task."""
        number = self._tick()
        attempt = Attempt(number, update, Transaction(number, number, 0, Outcome.ABORTED))
        current.set(attempt)
        self.attempts.append(attempt)
        return attempt

    def new_update(self) -> int:
        return self._tick()

    def acknowledge(self, attempt: Attempt) -> None:
        """Record that its commit returned, or that it finished reading."""
        self._end(attempt, Outcome.COMMITTED)

    def give_up(self, attempt: Attempt) -> None:
        """Record that an error ended it: a COMMIT already sent may have succeeded."""
        if not attempt.acknowledged:
            self._end(attempt, Outcome.UNKNOWN if attempt.commit_sent else Outcome.ABORTED)

    def reached_client(self, error: BaseException, *injected: type[BaseException]) -> None:
        """Record an error that reached a client."""
        self.errors[type(error).__name__] += 1
        if not is_typed(error) and not isinstance(error, injected):
            self.foreign.append(error)

    def update_ended(self) -> None:
        """Record that a client finished an update, successfully or not."""
        with self._changed:
            self._ended += 1
            self._changed.notify_all()

    @property
    def ended(self) -> int:
        """The number of updates that the clients finished."""
        return self._ended

    def wait_for(self, ended: int, seconds: float = 2) -> None:
        """Wait for this number of finished updates, with a short limit: a fault may have stopped all clients."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended >= ended, seconds)

    def updates(self) -> Iterator[Attempt]:
        """The attempts that intended a change."""
        return (attempt for attempt in self.attempts if attempt.update)

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.transaction.outcome = outcome
        attempt.transaction.ended = self._tick()


def is_typed(error: BaseException) -> bool:
    """Return whether a client may get this error: from the database, and not from a mistake of its own."""
    if isinstance(error, (LockMisuse, sa.exc.IntegrityError, sa.exc.ProgrammingError)):
        return False
    # MariaDB may answer an UPDATE hit by KILL QUERY with "0 rows matched", and no error.
    known = (DocLockError, sa.exc.DBAPIError, sa.exc.TimeoutError, StaleDataError)
    return isinstance(error, known)


def _note_commit(_: object) -> None:
    attempt = current.get()
    if attempt is not None:
        attempt.commit_sent = True


# --------------------------------------------------------------------------------------------------
# A client changes and reads the folders it holds, and records this as a history.

#: The largest change of a value.
LARGEST = 9


def look(log: Log, attempt: Attempt, folders: Sequence[Folder]) -> None:
    """Read folders whole; a wrong sum is a broken read."""
    operations = attempt.transaction.operations
    for folder in folders:
        total, values = folder.total, [sheet.value for sheet in folder.sheets]
        if total != sum(values):
            log.broken_reads.append(f"attempt {attempt.number}, folder {folder.id}: {total}")
        operations.append(Read(Item(folder.id), _version(folder.writer)))
        operations += [
            Read(Item(folder.id, str(sheet.number)), _version(sheet.writer))
            for sheet in folder.sheets
        ]


def change(
    session: LockingSession, attempt: Attempt, folders: Sequence[Folder], chance: random.Random
) -> None:
    """Change a sheet of each folder, and the totals; two folders exchange amounts."""
    delta = chance.randint(1, LARGEST)
    for folder, sign in zip(folders, (1, -1), strict=False):
        sheet = chance.choice(folder.sheets)
        attempt.marks[folder.id] = sign * delta
        for row, part in ((sheet, str(sheet.number)), (folder, "")):
            write = Write(Item(folder.id, part), Version(attempt.number), _version(row.writer))
            attempt.transaction.operations.append(write)
            row.writer = attempt.number
        sheet.value += sign * delta
        folder.total += sign * delta
        session.add(
            Mark(
                attempt=attempt.number,
                folder_id=folder.id,
                update=attempt.update,
                delta=sign * delta,
            )
        )


def _version(writer: int) -> Version:
    return Version(writer) if writer else Version(0, 0)
