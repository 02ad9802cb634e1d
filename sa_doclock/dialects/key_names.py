"""The name of a named lock, as a server takes it: short, and different for different keys."""

from __future__ import annotations

import hashlib
import re

# No letter that a server may take for another, and nothing that an SQL literal has to escape.
_NOT_PLAIN = re.compile(r"[^a-z0-9_.:/@+=,-]")
_DIGITS = 32  # of SHA-256, 128 bits
_MARK = "#"  # is not plain, so no key reads like the name of another


def short_name(key: str, longest: int) -> str:
    """Return the key itself, if it is plain and not too long; else its beginning, and a hash.

    The same key gives the same name in every process, release and program.
    """
    readable = _NOT_PLAIN.sub("_", key)
    if readable == key and len(key) <= longest:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]
    return f"{readable[: longest - _DIGITS - len(_MARK)]}{_MARK}{digest}"
