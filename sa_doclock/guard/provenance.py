"""The provenance of the rows of declared documents, which an UnlockedWrite describes.

SQLAlchemy numbers the executions whose rows become objects, and each object keeps the number of the
one that has loaded it.  So a session notes its executions alone, not the rows; an error looks up
the one that it needs.
"""

from __future__ import annotations

from collections import deque
from itertools import starmap
from typing import Any, Final, NamedTuple

from sqlalchemy import inspect
from sqlalchemy.engine import ChunkedIteratorResult
from sqlalchemy.orm import InstanceState

from ..caller import frame_of_program
from ..sqlalchemy_internals import next_run, run_and_sql
from ..transaction import Ledger

LIMIT: Final = 2000
"""The number of executions that a session remembers, of its last ones: 0.2 kB each."""


class Execution(NamedTuple):
    """An execution that has read objects."""

    above: int  # its number is greater; 0: its number is the last one
    last_and_sql: tuple[int, object]  # its number is this, or less; str() of the other is its SQL
    between_locks: bool  # it was not of a call that takes a lock
    unlocked: bool  # no lock was held
    line: str | None

    def has(self, run: int) -> bool:
        """Return whether it may have this number."""
        last = self.last_and_sql[0]
        return self.above < run <= last if self.above else run == last


class ReadLog(deque[tuple[Any, ...]]):
    """The executions of one session that have read objects: of each what is in an Execution."""

    tracing = False
    """True if the line of the program is noted too."""

    def note(self, above: int, result: Any, ledger: Ledger) -> None:
        """Note an execution, if it has read objects.

        :param above: what ``run_before()`` has returned before it.
        """
        # Those of rows that no object is made of are mostly of another type.
        if type(result) is ChunkedIteratorResult:
            line = _line_of_program() if self.tracing else None
            try:
                last_and_sql = run_and_sql(result)
            except AttributeError:  # a listener of the program has made the result
                return
            self.append((above, last_and_sql, ledger.new is None, not ledger.held, line))

    def note_scalar(self, above: int, statement: object, value: object, ledger: Ledger) -> None:
        """Note the execution of a statement, if its only value is an object.

        :param above: what ``next_run()`` has returned before it.
        """
        if isinstance(inspect(value, raiseerr=False), InstanceState):
            line = _line_of_program() if self.tracing else None
            self.append((above, (next_run(), statement), True, not ledger.held, line))

    def describe(self, state: InstanceState[Any]) -> str:
        """Return the sentence that says where the object was read; empty if that is not known."""
        run = getattr(state, "sa_doclock_run", state.runid)
        if run is None:
            return ""
        # The first of them: one that has run within another is noted before it.
        found = next((one for one in starmap(Execution, self) if one.has(run)), None)
        if found is None:
            return ""
        how = ""  # whether a row is of a document that is held would be a look-up for every row
        if not found.between_locks:
            how = " under a lock that is not held any more"
        elif found.unlocked:
            how = " without the lock"
        sql = " ".join(str(found.last_and_sql[1]).split())
        where = f", at {found.line}" if found.line else ""
        return f"  It was read{how} by {sql}{where}."


def new_read_log(*, tracing: bool) -> ReadLog:
    """Return the log of a session that has read nothing yet."""
    log = ReadLog((), LIMIT)
    log.tracing = tracing
    return log


def note_refresh(state: Any, context: Any, *_: object) -> None:
    """Note which execution has loaded an object again, from a listener for ``refresh``.

    SQLAlchemy does not renew the number of an object where it loads a part of its attributes, or
    all those that have expired.  Pickle does not take ours along.
    """
    if context is not None:
        state.sa_doclock_run = context.runid


def _line_of_program() -> str | None:
    frame = frame_of_program()
    if frame is None:
        return None
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
