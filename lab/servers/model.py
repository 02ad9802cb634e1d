"""The result of a search for servers: a server, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: The databases that need a server, in the order in which reports list them.
NAMES = ("postgresql", "mysql", "mariadb", "mssql")


def no_stop() -> None:
    """Leave a server alone that was running before us."""


def no_crash() -> None:
    """Refuse: it is not ours to kill."""
    raise NotImplementedError


@dataclass(frozen=True)
class Server:
    """A running server with an empty database, and an account that may see who waits for whom.

    :ivar crash: kill it, and return when it has come back with what was on its disk.
    """

    name: str
    url: str
    version: str
    origin: str
    stop: Callable[[], None] = field(default=no_stop, repr=False)
    crash: Callable[[], None] = field(default=no_crash, repr=False)


@dataclass(frozen=True)
class Missing:
    """A database that nothing on this machine could provide."""

    name: str
    reason: str


class UnavailableError(Exception):
    """One way of getting a server does not work here; the text says why."""


class EndedError(UnavailableError):
    """A program of a server has ended by itself; another try may go well."""


def url_variable(name: str) -> str:
    """Return the environment variable that gives this database's URL."""
    return f"SA_DOCLOCK_TEST_{name.upper()}_URL"
