"""The provenance of the rows of declared documents, which an UnlockedWrite describes.

SQLAlchemy numbers the executions whose rows become objects, and each object keeps the number of the
one that has loaded it.  So a session notes its executions alone, not the rows; an error looks up
the one that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import starmap
from typing import Any, Final, NamedTuple

from sqlalchemy.orm import InstanceState

from ..caller import frame_of_program

READS_REMEMBERED: Final = 2000
"""The most executions that a session remembers; of more it forgets the older half."""

_SCHEMA_TO_TRANSLATE: Final = re.compile(r"__\[SCHEMA_[^]]*\]\.")
"""The place of a schema in compiled SQL, with a ``schema_translate_map``."""


class Execution(NamedTuple):
    """An execution of a statement that may have read objects."""

    above: int  # on SQLAlchemy 2.0 a number less than its own; else 0
    last: int  # its number; on SQLAlchemy 2.0 perhaps a greater one
    sql: str
    between_locks: bool  # it was not of a call that takes a lock
    unlocked: bool  # no lock was held
    line: str | None

    def has(self, run: int) -> bool:
        """Return whether this may be its number."""
        return self.above < run <= self.last if self.above else run == self.last


def describe_read(state: InstanceState[Any], reads: Iterable[tuple[Any, ...]]) -> str:
    """Return the sentence that says where the object was read; empty if that is not known.

    :param reads: the executions of the session, of each what is in an Execution.
    """
    # Pickle takes neither of them along.
    run = getattr(state, "sa_doclock_run", state.runid)
    if run is None:
        return ""
    # The first of them: one that has run within another is noted before it.
    found = next((one for one in starmap(Execution, reads) if one.has(run)), None)
    if found is None:
        return ""
    how = ""  # whether a row is of a document that is held would be a look-up for every row
    if not found.between_locks:
        how = " under a lock that is not held any more"
    elif found.unlocked:
        how = " without the lock"
    sql = _SCHEMA_TO_TRANSLATE.sub("", " ".join(found.sql.split()))
    where = f", at {found.line}" if found.line else ""
    return f"  It was read{how} by {sql}{where}."


def note_refresh(state: Any, context: Any, *_: object) -> None:
    """Note which execution has loaded an object again, from a listener for ``refresh``.

    SQLAlchemy does not renew the number of an object where it loads a part of its attributes, or
    all those that have expired.
    """
    if context is not None:
        state.sa_doclock_run = context.runid


def line_of_read() -> str | None:
    """Return the line of the program that has run a statement."""
    frame = frame_of_program()
    if frame is None:
        return None
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
