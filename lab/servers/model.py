"""The result of a search for servers: a server, or the reason for its absence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: The databases that need a server, in the order in which reports list them.
NAMES = ("postgresql", "mysql", "mariadb", "mssql")


def no_stop() -> None:
    """Do nothing: the server ran before this process."""


def no_crash() -> None:
    """Refuse: this process did not start the server."""
    raise NotImplementedError


@dataclass(frozen=True)
class Server:
    """A running server with an empty database, and an account that can see lock waits.

    :ivar crash: kills the server, and returns when it is back with the data on its disk.
    """

    name: str
    url: str
    version: str
    origin: str
    stop: Callable[[], None] = field(default=no_stop, repr=False)
    crash: Callable[[], None] = field(default=no_crash, repr=False)


@dataclass(frozen=True)
class Missing:
    """A database that this machine cannot provide."""

    name: str
    reason: str


class UnavailableError(Exception):
    """One way to get a server does not work here; the text gives the reason."""


class EndedError(UnavailableError):
    """A server program ended by itself; another attempt may succeed."""


def url_variable(name: str) -> str:
    """Return the environment variable that gives this database's URL."""
    return f"SA_DOCLOCK_TEST_{name.upper()}_URL"
