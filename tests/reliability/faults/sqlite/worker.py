"""The main functions of processes that are going to be killed, one function each.

It tells the test on a pipe how far it is, and then waits on it for its end where it is to die at
a certain point.
"""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from tests.reliability.faults.clients import take
from tests.reliability.faults.log import current
from tests.reliability.faults.model import FOLDERS, Folder, Mark
from tests.reliability.faults.sqlite.written import WrittenLog
from tests.reliability.faults.ways import Desk

#: Of a process; more than it ever needs.
ATTEMPTS = 1_000_000

LOCK_TIMEOUT = 20.0
WAYS = ("get_entity", "get_documents", "locked", "entity_set", "lock_key", "run_transaction")

At = Callable[[Pipe], None]


#: Seconds between two changes.  A file has no queue: without a pause the other process may starve.
_PAUSE = 0.002


def change_folders(path: Path, log_path: Path, number: int, pipe: Pipe) -> None:
    """Change folders for ever; tell when a COMMIT is about to be sent."""
    desk, engine = _open(path, log_path, number)
    event.listen(engine, "commit", lambda _: pipe.send_bytes(b"commit"))
    while True:
        take(desk)
        time.sleep(_PAUSE)


def change_once(path: Path, log_path: Path, number: int, way: str, at: At, pipe: Pipe) -> None:
    """Make one change, and go to ``at`` when its COMMIT is about to be sent."""
    desk, engine = _open(path, log_path, number)
    event.listen(engine, "commit", lambda _: at(pipe))
    take(desk, way)


def change_and_be_silent(path: Path, log_path: Path, number: int, pipe: Pipe) -> None:
    """Make one change, whose COMMIT returns, and is never acknowledged."""
    desk, engine = _open(path, log_path, number)
    event.listen(desk.factory, "after_commit", lambda _: stop_there(pipe))
    take(desk, "get_documents")
    assert engine


def hold_much(path: Path, log_path: Path, number: int, pipe: Pipe) -> None:
    """Lock all folders, and change so much that it does not fit in the cache any more."""
    _, engine = _open(path, log_path, number)
    _hold_much(engine, pipe)


def hold_much_without_a_journal(path: Path, log_path: Path, number: int, pipe: Pipe) -> None:
    """The same, in the one way in which SQLite does not promise to survive it."""
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
    """Hold the file, as another program does that knows nothing of this library."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"BEGIN {how}")
        stop_there(pipe)


def stop_there(pipe: Pipe) -> None:
    """Tell, and wait for the end."""
    pipe.send_bytes(b"there")
    pipe.recv_bytes()


class DieWriting:
    """Let the process die by the first byte that it writes behind this place, in any file.

    The system kills it by SIGXFSZ, in the midst of the write: so it can be given the place where it dies, and
    neither process nor driver can do anything about it.

    :param file: whose present length is added, if it is there.
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
