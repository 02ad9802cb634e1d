"""The provenance of the rows of declared documents, which an UnlockedWrite describes.

The session listens to the loads of declared documents alone.  Each object keeps the statement
that loaded it last and, with guard tracing, the line of the program that ran the statement.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy.orm import InstanceState

from ..caller import frame_of_program
from ..transaction import Ledger

LOAD_RECORD: Final = "sa_doclock.read"
"""The key of a LoadRecord in the ``attributes`` of an execution."""

WRITE_RECORD: Final = "sa_doclock.written"
"""The same where the statement has written the rows, each of which is looked at."""


class LoadRecord(NamedTuple):
    """The last load of an object.

    It is the attribute ``sa_doclock_read`` of the InstanceState, which pickle does not take along.
    """

    statement: Any
    how: str
    line: str | None


def load_record(statement: Any, ledger: Ledger, *, tracing: bool) -> LoadRecord:
    """Return the record of a statement, which serves for all its rows.

    :param tracing: record the line of the program too.
    """
    how = " without the lock"
    if ledger.new is not None:
        how = " under a lock that is not held any more"
    elif ledger.held:
        how = ""  # whether a row is of a document that is held would be a look-up for every row
    frame = frame_of_program() if tracing else None
    if frame is None:
        return LoadRecord(statement, how, None)
    code = frame.f_code
    line = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
    return LoadRecord(statement, how, line)


def describe_load(state: InstanceState[Any]) -> str:
    """Return the sentence that says where the object was read; empty if that is not known."""
    read: LoadRecord | None = getattr(state, "sa_doclock_read", None)
    if read is None:
        return ""
    where = f", at {read.line}" if read.line else ""
    return f"  It was read{read.how} by {' '.join(str(read.statement).split())}{where}."
