"""A clock that can be put forward, and the limits of servers, for the tests of hold_limit."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

#: Long enough for every step of a test; the clock is put forward past it.
LONG = 600


class Clock:
    """The clock by which a session knows how long it has held its locks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        monkeypatch.setattr("sa_doclock.core.ledger.time", SimpleNamespace(monotonic=self._now))

    def _now(self) -> float:
        return time.monotonic() + self._ahead

    def put_forward(self, seconds: float = LONG + 1) -> None:
        self._ahead += seconds


#: The limits of a connection, in seconds or as the server writes them.
LIMITS = {
    "postgresql": "SELECT current_setting('idle_in_transaction_session_timeout'), "
    "current_setting('transaction_timeout', true)",
    "mysql": "SELECT @@SESSION.wait_timeout",
    "mariadb": "SELECT @@SESSION.idle_transaction_timeout",
}
DEFAULTS = {"postgresql": ("0", "0"), "mysql": (28800,), "mariadb": (0,)}
LIMITED = {"postgresql": ("10min", "10min"), "mysql": (LONG,), "mariadb": (LONG,)}
#: Where the limit is sent in front of the lock, for whose wait transaction_timeout would count.
LIMITED_BEFORE = {**LIMITED, "postgresql": ("10min", "0")}


def limits_of(bind: sa.Engine | Session, database: str) -> tuple[object, ...]:
    """Return the limits of the connection that is used next."""
    statement = sa.text(LIMITS[database])
    if isinstance(bind, Session):
        return known(bind.execute(statement).one(), bind.get_bind().dialect)
    with bind.connect() as connection:
        return known(connection.execute(statement).one(), bind.dialect)


def known(limits: sa.Row[Any], dialect: sa.Dialect) -> tuple[object, ...]:
    """Return the limits; what equals any text for transaction_timeout, where it is not set.

    It came with PostgreSQL 17, and sa_doclock sets it with psycopg 3 alone.
    """
    first, others = limits[0], limits[1:]
    missing = None in others or (
        dialect.name == "postgresql" and dialect.driver.removesuffix("_async") != "psycopg"
    )
    return (first, *([ANY] * len(others) if missing else others))
