"""Answers about tables, each cached until DDL may have changed it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, MutableMapping
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar
from weakref import ref

from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import NullPool

T = TypeVar("T")

# Other processes execute DDL too, and no answer of the server shows it: FOR UPDATE of a MyISAM
# table returns no warning, and PyMySQL, mysqlclient and aiomysql do not expose
# SERVER_STATUS_IN_TRANS of rows.
_LIFETIME = 60.0  # seconds
_ANSWERS: Final = "sa_doclock.table_answers"  # in Connection.info
# Anywhere in a program's text: a comment or SET STATEMENT may come first.
_DDL: Final = re.compile(r"\b(?:ALTER|CREATE|DROP|IMPORT|RENAME)\b", re.IGNORECASE)


class _Answer(NamedTuple):
    value: Any
    age: object
    until: float


class _SentDDL:
    """The DDL that SQLAlchemy executes in this process.

    :ivar age: a new object after each statement.
    """

    def __init__(self) -> None:
        self.age = object()
        # Threads: add(), discard() and copy() of a set are atomic, even without a GIL.
        self._senders: set[ref[Connection]] = set()
        self._first = Lock()
        self._listening = False

    def listen(self) -> None:
        """Listen to all engines: DDL may use a separate one."""
        if not self._listening:
            with self._first:
                if not self._listening:
                    for name in ("do_execute", "do_executemany", "do_execute_no_params"):
                        event.listen(Engine, name, self._before_execute)
                    self._listening = True

    def is_open(self) -> bool:
        """Return whether DDL is uncommitted or not yet executed: others still see the old tables."""
        for sender in self._senders.copy():
            connection = sender()
            if connection is None or not connection.in_transaction():
                self._senders.discard(sender)
        return bool(self._senders)

    def _before_execute(self, _cursor: Any, statement: str, *rest: Any) -> None:
        context = rest[-1]
        if context.isddl or (context.is_text and _DDL.search(statement)):
            self._senders.add(ref(context.root_connection))
            self.age = object()


_sent_ddl: Final = _SentDDL()  # Threads: see there


def kept_answer(
    findings: MutableMapping[Any, Any], connection: Connection, question: Any, ask: Callable[[], T]
) -> T:
    """Return the server's answer; it is asked again after DDL, on another connection, and each minute.

    :param findings: the strategy's, for a pool that keeps no connection.
    :param ask: asks; the answer None is not kept.
    """
    pooled = not isinstance(connection.engine.pool, NullPool)
    place = connection.info if pooled else findings
    answers: dict[Any, _Answer] | None = place.get(_ANSWERS)
    if answers is None:
        _sent_ddl.listen()
        answers = place[_ANSWERS] = {}
    age, now, known = _sent_ddl.age, time.monotonic(), answers.get(question)
    if known is not None and known.age is age and now < known.until:
        value: T = known.value
        return value
    settled = not _sent_ddl.is_open()
    value = ask()
    if settled and value is not None:
        answers[question] = _Answer(value, age, now + _LIFETIME)
    return value
