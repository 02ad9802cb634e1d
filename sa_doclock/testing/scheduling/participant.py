"""The two functions of a run, and the steps of each."""

from __future__ import annotations

import re
import time
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from os.path import relpath
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection, Engine

from ..lock_waits import holds_file, server_of
from .accesses import Accesses, TransactionAccesses

FIRST, SECOND = 1, 2
"""The two functions, as an order writes them: ``"1221"``."""

OWN_TRANSACTION: Final = 0
"""The number of the transaction of each statement of a connection in AUTOCOMMIT."""


@dataclass
class Step:
    """One statement, COMMIT or ROLLBACK of a function.

    :ivar statement: its SQL.
    :ivar values: its parameters, abbreviated.
    :ivar transaction: a number that the steps of one transaction share.
    :ivar used: the rows that it uses.
    :ivar rows: the rows that the statement names, for people.
    :ivar accesses: those that can matter to the other function, for the search.
    :ivar line: of the program: ``shop/orders.py:42``.
    :ivar saw: the rows that it returned or wrote, in words; None while it runs.
    :ivar error: its error; ``is_deadlock``: a deadlock's.
    """

    function: int
    statement: str
    values: str
    transaction: int
    used: Accesses = frozenset()
    rows: Accesses = frozenset()
    accesses: Accesses = frozenset()
    line: str | None = None
    saw: str | None = None
    error: BaseException | None = None
    is_deadlock: bool = False


@dataclass(eq=False)
class Participant:
    """One of the two functions, in one run.

    :ivar number: 1 or 2.
    :ivar unseen: records its unseen actions.
    :ivar was_seen: one of its statements used a table.
    :ivar steps: all that it has sent, in order.
    :ivar turn: the future that grants its next step; None while it runs.
    :ivar waits: for a lock of the other one, or for a mutex.
    :ivar in_process: it waits inside this process, as a session at a gate does.
    :ivar active_at: the time of its last sign of life.
    :ivar transactions: the open ones, by connection.
    """

    number: int
    unseen: Any = None
    was_seen: bool = False
    steps: list[Step] = field(default_factory=list)
    done: bool = False
    turn: Future[None] | None = None
    step: Step | None = None
    waits: bool = False
    in_process: bool = False
    active_at: float = field(default_factory=time.monotonic)
    connection: Connection | None = None
    transactions: dict[int, TransactionAccesses] = field(default_factory=dict)
    _used: list[ref[Connection]] = field(default_factory=list)
    _numbers: WeakKeyDictionary[Connection, int] = field(default_factory=WeakKeyDictionary)
    _last_number: int = 0

    @property
    def runs(self) -> bool:
        """True between its turn and its next step."""
        return not self.done and self.turn is None

    @property
    def statement(self) -> str | None:
        """The current statement; None between two."""
        return None if self.step is None or self.step.saw is not None else self.step.statement

    @property
    def engine(self) -> Engine | None:
        """The engine of its last statement."""
        return None if self.connection is None else self.connection.engine

    def holds_file_of(self, engine: Engine) -> bool:
        """Return whether one of its connections has the write lock of this engine's SQLite file."""
        connections = (reference() for reference in [*self._used])
        return any(
            connection is not None
            and server_of(connection.engine) == server_of(engine)
            and holds_file(connection)
            for connection in connections
        )

    def use(self, connection: Connection) -> None:
        """Record that its next statement is on this connection."""
        if connection is not self.connection:
            self.connection = connection
            self._used.append(ref(connection))

    def shares(self, connection: Connection) -> bool:
        """Return whether it uses this object, or another on the same driver connection."""
        used = (reference() for reference in [*self._used])
        return any(
            other is connection or _driver_of(other) is _driver_of(connection)
            for other in used
            if other is not None and not other.closed
        )

    def number_of(self, connection: Connection) -> int:
        """Return the number of the open transaction of this connection."""
        number = self._numbers.get(connection)
        if number is None or number not in self.transactions:
            self._last_number += 1
            number = self._numbers[connection] = self._last_number
        return number

    def note_active(self) -> None:
        """Record a sign of life."""
        self.active_at = time.monotonic()

    def note_ended_step(self) -> None:
        """Record that its last statement has ended."""
        self.note_active()
        if self.step is not None:
            self.step.saw = ""

    def conflicts(self, accesses: Accesses) -> bool:
        """Return whether one of its open transactions conflicts with a step of the other one."""
        return any(transaction.conflicts(accesses) for transaction in [*self.transactions.values()])


def _driver_of(connection: Connection) -> object:
    """Return the driver's connection, or a new object if there is none."""
    with suppress(Exception):  # its function may be ending it
        if not (connection.closed or connection.invalidated):
            return connection.connection.driver_connection
    return object()


current_participant: ContextVar[Any] = ContextVar("sa_doclock.testing.participant", default=None)
"""The function that runs in this thread or task, or that started it."""

_LONGEST: Final = 100
_COLUMNS_READ: Final = re.compile(r"^SELECT (.{20,}?) FROM ", re.IGNORECASE)


def short_sql(statement: str) -> str:
    """Return the statement on one line, without the columns that it reads."""
    text = _COLUMNS_READ.sub("SELECT ... FROM ", " ".join(statement.split()))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def short_line(line: str | None) -> str:
    """Return a line of the program, relative to the directory of the test run."""
    if line is None:
        return ""
    file, _, number = line.rpartition(":")
    try:
        near = relpath(file)
    except ValueError:  # another drive
        return line
    return line if near.startswith("..") else f"{Path(near).as_posix()}:{number}"
