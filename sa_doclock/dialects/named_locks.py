"""The named locks of a database, which a dialect may omit, and their names at the server."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from threading import Lock
from typing import ClassVar

from sqlalchemy import Connection

from ..errors import LockFailed
from ..options import LockOptions


class NamedLocks(ABC):
    """Locks of names: a key instead of a row."""

    end_with_transaction: ClassVar[bool] = True
    """The end of the transaction releases them, not a statement of ours."""

    @abstractmethod
    def take(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        """Take a named lock, held to the end of the connection's transaction.

        :param lock: ForUpdate, or SharedRead, for which an exclusive one may stand in; NoWait comes
            as a modifier, with ``seconds`` None.
        :returns: None when it is held; the error, if the server reports it by a value.
        :raises LockNotSupported: this server cannot give it.
        """


# No letter that a server may confuse with another, and none that an SQL literal must escape.
_NOT_PLAIN = re.compile(r"[^a-z0-9_.:/@+=,-]")
_DIGITS = 32  # of SHA-256: 128 bits
_MARK = "#"  # not a plain character, so no key looks like another key's name


def short_name(key: str, longest: int) -> str:
    """Return the key itself, if it is plain and not too long; else its beginning, and a hash.

    The same key gives the same name in every process, release and program.
    """
    readable = _NOT_PLAIN.sub("_", key)
    if readable == key and len(key) <= longest:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]
    return f"{readable[: longest - _DIGITS - len(_MARK)]}{_MARK}{digest}"


# The keys that this process asked for: a server knows them by other names.
_KEPT = 1_000
_LONGEST = 255  # characters; for a longer key, lock_waits() shows the server's name
# Global: a name does not depend on the engine, and lock_waits() may use another engine.
# Threads: changed and copied under the lock; looking up a name is one operation of the dict.
_keys: dict[str, str] = {}
_changing = Lock()


def remember_key(key: str, name: str) -> None:
    """Remember the key that a server knows by this name, so that lock_waits() can show it.

    Names of dialects are short; keys that a program builds from a form may be long.
    """
    if name not in _keys and len(key) <= _LONGEST:
        with _changing:
            _keys[name] = key
            if len(_keys) > _KEPT:
                del _keys[next(iter(_keys))]


def recent_keys() -> Mapping[str, str]:
    """Return the latest keys of this process, by their names at the server."""
    with _changing:
        return dict(_keys)
