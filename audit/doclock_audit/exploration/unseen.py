"""Finds work of the two functions that explore() cannot order: threads, processes, separate connections."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from sa_doclock.testing.instruments import (
    frames,
    is_kit_asking,
    is_of_library,
    is_of_sqlalchemy,
    line_of_program,
    listening,
)
from sa_doclock.testing.scheduling import (
    FIRST,
    SECOND,
    Observer,
    Participant,
    Step,
    current_participant,
    short_line,
    short_sql,
)

_NAMES: Final = {FIRST: "the first function", SECOND: "the second function"}
_IN_CONTEXT: Final = "contextvars.copy_context().run"
_RAW: Final = "sa_doclock.testing.raw"

_PROCESS_EVENTS: Final = frozenset(
    {
        *("subprocess.Popen", "os.system", "os.fork", "os.forkpty"),
        *("os.posix_spawn", "os.spawn", "os.exec", "os.startfile"),
    }
)
_CONNECT_EVENTS: Final = frozenset({"sqlite3.connect"})
_WATCHED: Final = _PROCESS_EVENTS | _CONNECT_EVENTS
_TO_DRIVER: Final = frozenset({"cursor", "driver_connection", "dbapi_connection", "raw_connection"})
_CALLS: Final = 2  # functions between the sender of a statement and the driver
# Threads: two that begin at once may add two hooks; both record the same reason once.
_hooked: list[bool] = []


class Unseen(Observer):
    """Records the unseen work of the two functions.

    :ivar watches: True while a function runs.  A statement of neither function then comes from a
        helper thread.
    """

    def __init__(self) -> None:
        self.watches = False
        self._reasons: dict[str, str] = {}  # by kind; keeps the first of each
        self._reaches_driver: dict[CodeType, bool] = {}
        self._ran: dict[int, bool] = {}  # by function: whether explore() saw a statement of it

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to all pools of the process, and to Python's audit events."""
        if not _hooked:
            _hooked.append(True)
            sys.addaudithook(_on_audit_event)  # for the rest of the process
        with listening(
            (Pool, "checkout", self._on_checkout),
            (Engine, "engine_connect", self._on_connect),
            (Pool, "checkin", self._on_checkin),
        ):
            yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch in the block, while the functions run."""
        self.watches = True
        try:
            yield
        finally:
            self.watches = False

    def reasons(self) -> list[str]:
        """Return sentences that say why explore() might have missed an order."""
        blind = [_NAMES[number] for number, seen in sorted(self._ran.items()) if not seen]
        no_statement = (
            f"no statement of {' and '.join(blind)} was seen on a table: the work happens in another "
            "process or on a raw driver connection, or there is none"
        )
        return [*([no_statement] if blind else ()), *self._reasons.values()]

    def note_run(self, participant: Participant) -> None:
        """Note whether the finished order contains a statement of this function."""
        number = participant.number
        self._ran[number] = self._ran.get(number, False) or participant.was_seen

    def note_statement(self, statement: str) -> None:
        """Note a statement that neither function sent, unless the kit itself sent it."""
        if self.watches and not is_kit_asking.get():
            name = threading.current_thread().name
            self._note(
                "thread",
                f"thread {name!r} sent {short_sql(statement)!r}{_at_line()} without waiting for a turn; "
                f"send it in the function's own thread, or start the thread with {_IN_CONTEXT}",
            )

    def note_parallel(self, step: Step) -> None:
        """Note a step that a second thread or task of a function sends while the first one waits."""
        who = _NAMES[step.function]
        self._note(
            "parallel",
            f"{who} sends statements in several threads or tasks at once, such as {short_sql(step.statement)!r}"
            f"{_at_line(step.line)}; explore() cannot order them",
        )

    def note_shared(self, step: Step) -> None:
        """Note a connection that both functions use, in one transaction."""
        self._note(
            "shared",
            f"both functions use one connection{_at_line(step.line)}, and so one transaction, in which nothing "
            "conflicts: bind the sessions to the engine, and do not use StaticPool",
        )

    def note_step(self, participant: Participant) -> None:
        """Note if a function uses the driver's connection before this statement."""
        of_program = False
        for frame in frames():
            if is_of_library(frame):
                if of_program and not is_of_sqlalchemy(frame):
                    return  # explore()'s caller is not part of the function
                continue
            of_program, code = True, frame.f_code
            if code not in self._reaches_driver:
                self._reaches_driver[code] = _reaches_driver(code, frame.f_globals, _CALLS)
            if self._reaches_driver[code]:
                self.note_raw(participant, f"{code.co_filename}:{frame.f_lineno}")

    def note_raw(self, participant: Participant, line: str | None) -> None:
        """Note a driver connection without a SQLAlchemy Connection."""
        who = _NAMES[participant.number]
        self._note(
            "raw",
            f"{who} uses a raw connection{_at_line(line)}; explore() does not see its statements",
        )

    def note_audit_event(self, participant: Participant, event: str) -> None:
        """Note a process that a function starts, or a connection that it opens without the engine."""
        if event in _PROCESS_EVENTS:
            who = _NAMES[participant.number]
            self._note(
                "process",
                f"{who} starts another process{_at_line()}; explore() does not see its statements",
            )
        elif not any(map(is_of_sqlalchemy, frames())):
            self.note_raw(participant, line_of_program())

    def _note(self, kind: str, reason: str) -> None:
        self._reasons.setdefault(kind, reason)

    # Only the program itself checks out a pooled connection without a Connection.

    def _on_checkout(self, _connection: object, record: ConnectionPoolEntry, _: object) -> None:
        participant: Participant | None = current_participant.get()
        if participant is not None and participant.unseen is self and not is_kit_asking.get():
            record.info[_RAW] = participant, line_of_program()

    def _on_connect(self, connection: Connection) -> None:
        if not connection.invalidated:
            connection.info.pop(_RAW, None)

    def _on_checkin(self, _connection: object, record: ConnectionPoolEntry) -> None:
        participant, line = record.info.pop(_RAW, (None, None))
        if participant is not None and participant.unseen is self:
            self.note_raw(participant, line)


def _reaches_driver(code: CodeType, names: Mapping[str, Any], calls: int) -> bool:
    """Return whether a function, or a function of its module that it calls, uses the driver."""
    if not _TO_DRIVER.isdisjoint(code.co_names):
        return True
    called = (getattr(names.get(name), "__code__", None) for name in code.co_names if calls)
    within = (one for one in code.co_consts if isinstance(one, CodeType))
    return any(_reaches_driver(one, names, calls - 1) for one in called if one) or any(
        _reaches_driver(one, names, calls) for one in within
    )


def _at_line(line: str | None = None) -> str:
    line = short_line(line or line_of_program())
    return f" in {line}" if line else ""


def _on_audit_event(event: str, _: Any) -> None:
    if event in _WATCHED:
        participant: Participant | None = current_participant.get()
        if participant is not None and participant.unseen is not None:
            participant.unseen.note_audit_event(participant, event)
