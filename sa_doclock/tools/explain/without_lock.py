"""A statement that locks, changed so that it locks nothing, and nobody waits for it."""

from __future__ import annotations

import re
from typing import Final

from ...errors import LockNotSupported

_AT_THE_END: Final = re.compile(
    r"\s+(?:FOR\s+(?:NO\s+KEY\s+)?UPDATE|FOR\s+SHARE|LOCK\s+IN\s+SHARE\s+MODE)"
    r"(?:\s+OF\s+.+?)?(?:\s+(?:NOWAIT|SKIP\s+LOCKED|WAIT\s+\d+))?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_TABLE_HINT: Final = re.compile(
    r"WITH \((?:UPDLOCK|READCOMMITTEDLOCK|NOWAIT)[^)]*\)", re.IGNORECASE
)
_BEGIN: Final = re.compile(r"^\s*BEGIN\s+IMMEDIATE\s*$", re.IGNORECASE)
# What one of the three above has left would lock something.
_LEFT: Final = re.compile(
    r"\bFOR\s+(?:NO\s+KEY\s+)?UPDATE\b|\bFOR\s+(?:KEY\s+)?SHARE\b|LOCK\s+IN\s+SHARE\s+MODE|UPDLOCK"
    r"|HOLDLOCK|READCOMMITTEDLOCK|BEGIN\s+(?:IMMEDIATE|EXCLUSIVE)|GET_LOCK|_advisory_|getapplock"
    r"|^\s*(?:UPDATE|INSERT|DELETE|REPLACE|MERGE|LOCK)\b",
    re.IGNORECASE,
)


def without_lock(statement: str) -> str:
    """Return the statement without its lock; itself where it has none.

    :raises LockNotSupported: it would lock something all the same, so it is not sent.
    """
    sent = _BEGIN.sub("BEGIN", _TABLE_HINT.sub("WITH (NOLOCK)", _AT_THE_END.sub("", statement)))
    if _LEFT.search(sent):
        raise LockNotSupported(f"explain_lock() cannot take the lock out of this statement: {sent}")
    return sent
