"""The keys of named locks that this process has asked for: a server knows them by other names."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

_KEPT = 1_000
_LONGEST = 255  # characters; of a longer one lock_waits() tells the name at the server
# Global: a name does not depend on the engine, and lock_waits() asks over an engine of its own.
# Threads: changed and copied under the lock; to look for a name is one operation of the dict.
_keys: dict[str, str] = {}
_changing = Lock()


def remember_key(key: str, name: str) -> None:
    """Remember the key that a server knows by this name, so that lock_waits() can tell it.

    The names of dialects are short; of keys that a program makes out of a form any may be long.
    """
    if name not in _keys and len(key) <= _LONGEST:
        with _changing:
            _keys[name] = key
            if len(_keys) > _KEPT:
                del _keys[next(iter(_keys))]


def recent_keys() -> Mapping[str, str]:
    """Return the last keys that this process has asked for, by their names at the server."""
    with _changing:
        return dict(_keys)
