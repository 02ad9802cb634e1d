"""The waits of one function for the other, as the server, or the file of SQLite, tells them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Engine

from ..file_locks import waits_for_file
from ..server_waits import (
    LONG_STATEMENT,
    ServersAsked,
    blocked_by,
    connection_id,
    locks_database,
    monitoring_of,
)
from .participant import Participant

IN_PROCESS: Final = "a function waited in this process, at a gate or between two tries"
NOT_SAID: Final = "a function waited, and no server said for whom"


class Waits:
    """Knows who waits for whom.

    :param run: runs a function of SQLAlchemy's on an asynchronous engine.
    :ivar servers: asks them who waits.
    :ivar unforced: the waits whose order is not ours, in words.
    """

    def __init__(self, run: Callable[[Callable[[], Any]], Any], patience: float) -> None:
        self.servers = ServersAsked(run)
        self._patience = patience
        self._owners: dict[tuple[Engine, int], int] = {}  # by the server's id of the connection
        self._asked_at: dict[Engine, float] = {}
        self.unforced: set[str] = set()

    def note_owner(self, participant: Participant, connection: Connection) -> None:
        """Note whose connection it is from now on."""
        number = connection_id(connection)
        if number is not None:
            self._owners[connection.engine, number] = participant.number

    def find(self, waiter: Participant, other: Participant) -> bool:
        """Return whether one function, which has not got on for a moment, waits for the other one."""
        if waiter.in_process:
            self.unforced.add(IN_PROCESS)
            return True
        quiet = time.monotonic() - waiter.active_at
        engine = waiter.engine
        if engine is not None:
            if locks_database(engine):
                found = waits_for_file(waiter.statement, quiet, other_holds=other.holds_file)
            else:
                found = self._waits_in_server(engine, waiter, other, quiet)
            if found:
                return True
        return self._guess(quiet, self._patience)

    def _waits_in_server(
        self, engine: Engine, waiter: Participant, other: Participant, quiet: float
    ) -> bool:
        blockers = self._blockers(engine)
        if blockers is None:
            return self._guess(quiet, LONG_STATEMENT)
        mine = self._ids(engine, waiter)
        return not blocked_by(mine, blockers).isdisjoint(self._ids(engine, other))

    def _blockers(self, engine: Engine) -> Mapping[int, set[int]] | None:
        """Return who waits for whom; nobody where the server was asked a moment ago; None: not known."""
        monitoring = monitoring_of(engine)
        if monitoring is None:
            return None
        asked_at = self._asked_at.get(engine, 0.0)
        if time.monotonic() - asked_at < monitoring.seconds_between_looks:
            return {}
        self._asked_at[engine] = time.monotonic()
        return self.servers.blockers(engine)

    def _guess(self, quiet: float, longest: float) -> bool:
        if quiet >= longest:
            self.unforced.add(NOT_SAID)
        return quiet >= longest

    def _ids(self, engine: Engine, participant: Participant) -> set[int]:
        return {
            number
            for (one, number), owner in self._owners.items()
            if one is engine and owner == participant.number
        }
