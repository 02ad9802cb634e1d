"""The limits of a lock: of the wait for it, and of the idle time of a transaction that holds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, Select, TextClause, bindparam, text

from ..options import LockOptions

SECONDS_WITHOUT_WAIT: Final = 0.25
"""No statement by key takes longer on a busy server, unless it waits."""

SECONDS_AFTER_GRANT: Final = 0.03
"""A limit of the whole statement leaves this time to a lock that is granted at the last moment."""


class LockWaits:
    """The waits for row locks.  By default nothing limits them, and ``lock_timeout`` has no effect."""

    def limited(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        *,
        few_rows: bool = False,
    ) -> AbstractContextManager[None]:
        """Limit the lock waits of the block, and restore the old limit whatever happens.

        :param few_rows: a few rows are found by their keys: then only waits take time, so a limit
            on the whole statement limits their sum.
        """
        return nullcontext()

    def sent_around(
        self, connection: Connection, lock: LockOptions, seconds: float | None
    ) -> tuple[str, ...]:
        """Return the statements of the limit that bypass SQLAlchemy, which explain_lock() cannot see.

        The last one is sent after the lock, the others before it.
        """
        return ()

    def timed(self, statement: Select[Any], lock: LockOptions, seconds: float) -> Select[Any]:
        """Return the statement with the limit in its text, if SQLAlchemy can write it there.

        Use :func:`text_with_numbers`: otherwise each text would be compiled and cached.
        """
        return statement

    def longest(self, connection: Connection) -> float | None:
        """Return the seconds after which the server itself ends a wait; None: never."""
        return None

    def lower_deadlock_priority(self, connection: Connection) -> None:
        """Make this transaction the victim of a deadlock, if the server offers the choice."""


class ServerHoldLimit(ABC):
    """The limit by which the server itself ends an idle transaction; a dialect may omit it."""

    @abstractmethod
    def limit(self, connection: Connection, seconds: float) -> None:
        """Let the server end this transaction if it is idle for longer than that.

        The server must count the idle time after every statement, even if a driver ends one in a
        way that stops the server's clock.  Sent before the lock.  Register ``on_return()`` for a
        setting that outlives the transaction; a shorter limit of the server's own stays.
        """


def text_with_numbers(words: str, **numbers: int | Decimal) -> TextClause:
    """Return this text, with a number in place of each name such as ``:seconds``.

    SQLAlchemy writes them into the text when it executes the statement.  So it compiles one
    statement for all numbers, while separate texts would fill the engine's cache.
    """
    return text(words).bindparams(
        *(bindparam(name, value, literal_execute=True) for name, value in numbers.items())
    )
