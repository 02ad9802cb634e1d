"""The clock of a database, which decides how long a check-out is valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy.types import TypeEngine


class ServerClock(NamedTuple):
    """The clock of a database: the SQL to ask it, and the type of its answer.

    :ivar now: the SQL expression of the time at which it is evaluated, or its statement began: in
        UTC, without a time zone, with microseconds if the server has them.  Never the begin of the
        transaction, which may have waited for a lock since.
    :ivar timestamp: returns the type of a column with microseconds and without a time zone.
    """

    now: str
    timestamp: Callable[[], TypeEngine[Any]]
