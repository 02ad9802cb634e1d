"""The log of a process that will be killed: each line is on disk before it counts."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from tests.reliability.faults.clients import take
from tests.reliability.faults.model import FOLDERS, Attempt, Folder, Log, Mark, current, is_typed
from tests.reliability.faults.ways import Desk
from tests.reliability.history.record import Outcome, Transaction


class WrittenLog(Log):
    """A log that a file records too.

    :param first: the number of the first attempt; other processes use other numbers.
    """

    def __init__(self, path: Path, first: int) -> None:
        super().__init__(_tick=itertools.count(first).__next__)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def means(self, attempt: Attempt) -> None:
        self._write(number=attempt.number, update=attempt.update, marks=attempt.marks)

    def acknowledge(self, attempt: Attempt) -> None:
        if attempt.update:
            self._write(acknowledged=attempt.number)
        super().acknowledge(attempt)

    def reached_client(self, error: BaseException, *injected: type[BaseException]) -> None:
        self._write(error=type(error).__name__, typed=is_typed(error), text=repr(error))
        super().reached_client(error, *injected)

    def _write(self, **reported: Any) -> None:
        os.write(self._file, json.dumps(reported).encode() + b"\n")
        os.fsync(self._file)


def read_logs(paths: Iterable[Path]) -> Log:
    """Combine the logs of all processes; unacknowledged changes may be committed or not."""
    log = Log()
    attempts: dict[int, Attempt] = {}
    for path in paths:
        for line in path.read_text("ascii").splitlines():
            reported = json.loads(line)
            if "number" in reported:
                attempts[reported["number"]] = _meant(reported)
            elif "acknowledged" in reported:
                attempts[reported["acknowledged"]].transaction.outcome = Outcome.COMMITTED
            else:
                log.errors[reported["error"]] += 1
                if not reported["typed"]:
                    log.foreign.append(AssertionError(reported["text"]))
    log.attempts += attempts.values()
    return log


def _meant(reported: dict[str, Any]) -> Attempt:
    number = reported["number"]
    # All at the same time: the processes share no clock.
    transaction = Transaction(number, began=0, ended=1, outcome=Outcome.UNKNOWN)
    marks = {int(folder): delta for folder, delta in reported["marks"].items()}
    return Attempt(number, reported["update"], transaction, marks, commit_sent=True)


# --------------------------------------------------------------------------------------------------
# The main functions of processes that will be killed, one function each.
#
# A process reports its progress to the test over a pipe. If it has to die at a certain point, it
# waits there for its end.

#: For each process; more than it ever needs.
ATTEMPTS = 1_000_000

LOCK_TIMEOUT = 20.0
WAYS = ("get_entity", "get_documents", "locked", "entity_set", "lock_key", "run_transaction")

At = Callable[[Pipe], None]


#: Seconds between two changes.  A file has no queue: without a pause the other process may starve.
_PAUSE = 0.002


def change_folders(path: Path, log_path: Path, number: int, pipe: Pipe) -> None:
    """Change folders forever; report when a COMMIT is about to be sent."""
    desk, engine = _open(path, log_path, number)
    event.listen(engine, "commit", lambda _: pipe.send_bytes(b"commit"))
    while True:
        take(desk)
        time.sleep(_PAUSE)


def change_once(path: Path, log_path: Path, number: int, way: str, at: At, pipe: Pipe) -> None:
    """Make one change, and call ``at`` when its COMMIT is about to be sent."""
    desk, engine = _open(path, log_path, number)
    event.listen(engine, "commit", lambda _: at(pipe))
    take(desk, way)


def change_and_be_silent(path: Path, log_path: Path, number: int, pipe: Pipe) -> None:
    """Make one change, whose COMMIT returns, and never acknowledge it."""
    desk, engine = _open(path, log_path, number)
    event.listen(desk.factory, "after_commit", lambda _: stop_there(pipe))
    take(desk, "get_documents")
    assert engine


def hold_much(path: Path, log_path: Path, number: int, pipe: Pipe) -> None:
    """Lock all folders, and change more than the cache can hold."""
    _, engine = _open(path, log_path, number)
    _hold_much(engine, pipe)


def hold_much_without_a_journal(path: Path, log_path: Path, number: int, pipe: Pipe) -> None:
    """Do the same in the one mode that SQLite does not promise to survive."""
    _, engine = _open(path, log_path, number)
    event.listen(engine, "connect", _have_no_journal)
    _hold_much(engine, pipe)


def _hold_much(engine: sa.Engine, pipe: Pipe) -> None:
    event.listen(engine, "connect", _have_a_small_cache)
    with LockingSession(engine) as session:
        for folder in session.get_documents(Folder, FOLDERS, LockOptions.ForUpdate):
            folder.total = -1
        session.flush()
        rows = [
            {"attempt": -n, "folder_id": 1, "update": 0, "delta": 10**9} for n in range(1, 5_000)
        ]
        session.execute(sa.insert(Mark), rows)
        stop_there(pipe)


def hold(path: Path, how: str, pipe: Pipe) -> None:
    """Hold the file, like a program without this library."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"BEGIN {how}")
        stop_there(pipe)


def stop_there(pipe: Pipe) -> None:
    """Report, and wait for the kill."""
    pipe.send_bytes(b"there")
    pipe.recv_bytes()


class DieWriting:
    """Make the process die at the first byte that it writes after this place, in any file.

    The system kills it with SIGXFSZ in the middle of the write: this sets the exact place, and
    neither process nor driver can prevent it.

    :param file: add its current length, if it exists.
    """

    def __init__(self, place: int, file: Path | None = None) -> None:
        self._place, self._file = place, file

    def __call__(self, pipe: Pipe) -> None:
        length = self._file.stat().st_size if self._file and self._file.exists() else 0
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (length + self._place, hard))


def _open(path: Path, log_path: Path, number: int) -> tuple[Desk, sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{path}")
    log = WrittenLog(log_path, number * ATTEMPTS + 1)

    def note(_: sa.Connection) -> None:
        attempt = current.get()
        if attempt is not None and attempt.marks:
            log.means(attempt)

    event.listen(engine, "commit", note)
    factory = sessionmaker(engine, class_=LockingSession, lock_timeout=LOCK_TIMEOUT)
    return Desk(factory, log, random.Random(f"process {number}")), engine


def _have_a_small_cache(dbapi_connection: Any, _: object) -> None:
    dbapi_connection.execute("PRAGMA cache_size = 5")


def _have_no_journal(dbapi_connection: Any, _: object) -> None:
    dbapi_connection.execute("PRAGMA journal_mode = MEMORY")
