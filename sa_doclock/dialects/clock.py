"""The clock of a database, which decides how long a check-out is valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy.types import TypeEngine


class ServerClock(NamedTuple):
    """The clock of a database: the SQL that asks it, and the type of its answer.

    :ivar now: the SQL expression of the time at which it is evaluated, or its statement began: in
        UTC, with microseconds where the server has them, without a time zone.  Never the begin of
        the transaction: a lock may have been waited for since.
    :ivar timestamp: returns the type of a column with microseconds and without a time zone.
    """

    now: str
    timestamp: Callable[[], TypeEngine[Any]]
