"""The administrator ends connections and statements."""

from __future__ import annotations

import random
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Engine

from tests.reliability.faults.backends import Backends

_END: Mapping[str, str] = {
    "postgresql": "SELECT pg_terminate_backend({})",
    "mysql": "KILL {}",
    "mariadb": "KILL {}",
}
_CANCEL: Mapping[str, str] = {
    "postgresql": "SELECT pg_cancel_backend({})",
    "mysql": "KILL QUERY {}",
    "mariadb": "KILL QUERY {}",
}
NO_SUCH_THREAD = 1094  # ER_NO_SUCH_THREAD: it has gone by itself


class _Kills:
    """Runs a statement of the administrator's on a connection of the clients, chosen at random."""

    name: str

    def __init__(self, engine: Engine, direct: Engine, statement: str) -> None:
        self._backends = Backends(engine)
        self._administrator = direct.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._statement = statement

    def inject(self, chance: random.Random) -> int:
        ids = self._backends.ids()
        if not ids:
            return 0
        try:
            done = self._administrator.exec_driver_sql(self._statement.format(chance.choice(ids)))
            return int(not done.returns_rows or bool(done.scalar()))
        except sa.exc.DBAPIError as error:
            if error.orig is None or error.orig.args[0] != NO_SUCH_THREAD:
                raise
            return 0

    def restarted(self) -> None:
        """The server was killed, and has come back."""
        self._backends.forget()
        self._administrator.invalidate()
        self._administrator.rollback()

    def heal(self) -> int:
        self._administrator.close()
        return 0


class Terminated(_Kills):
    name = "connections terminated by the server"

    def __init__(self, engine: Engine, direct: Engine, product: str) -> None:
        super().__init__(engine, direct, _END[product])


class Cancelled(_Kills):
    name = "statements cancelled by the server"

    def __init__(self, engine: Engine, direct: Engine, product: str) -> None:
        super().__init__(engine, direct, _CANCEL[product])
