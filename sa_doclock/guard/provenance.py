"""Where a row of a declared document was read: what an UnlockedWrite tells of it.

Only declared documents are listened to; of each object the statement is remembered that
loaded it last, and with guard tracing the line of the program that ran it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy.orm import InstanceState

from ..caller import frame_of_program
from ..transaction import Ledger

LOAD_RECORD: Final = "sa_doclock.read"
"""Where it is remembered: of an object in its ``info``, of an execution in its ``attributes``."""


class LoadRecord(NamedTuple):
    """How an object was loaded the last time."""

    statement: Any
    how: str
    line: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a pickled object does not take along where it was read


class LoadProvenance:
    """What one session reads of declared documents.

    :param tracing: remember the lines of the program too.
    """

    def __init__(self, ledger: Ledger, *, tracing: bool) -> None:
        self._ledger = ledger
        self._tracing = tracing

    def record_for(self, statement: Any) -> LoadRecord:
        """A statement has its first row; the others are said to be read in the same way."""
        how = " without the lock"
        if self._ledger.asked:
            how = " under a lock that is not held any more"
        elif self._ledger.held:
            how = ""  # to find out for every row whether it is of the document that is held?
        return LoadRecord(statement, how, _line_of_program() if self._tracing else None)


def record_load(state: InstanceState[Any], read: LoadRecord) -> None:
    """An object was loaded, or attributes of it were."""
    state.info[LOAD_RECORD] = read


def describe_load(state: InstanceState[Any]) -> str:
    """The sentence that says where the object was read; empty where it is not known."""
    read: LoadRecord | None = state.info.get(LOAD_RECORD)
    if read is None:
        return ""
    where = f", at {read.line}" if read.line else ""
    return f"  It was read{read.how} by {' '.join(str(read.statement).split())}{where}."


def _line_of_program() -> str | None:
    frame = frame_of_program()
    if frame is None:
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
