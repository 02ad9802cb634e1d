"""A run: clients at work, faults among them, and the verification of the results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from traceback import format_exception
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.pool import NullPool

from tests.reliability import Reliability, Row, Soak
from tests.reliability.faults.afterwards import Found, locks_left, look_on_disk, pool_is_wrong
from tests.reliability.faults.chaos import Chaos
from tests.reliability.faults.clients import CLIENTS, Clients
from tests.reliability.faults.model import Base, Log, fill
from tests.reliability.faults.ways import go_on
from tests.support.databases import PIPELINED, Database

#: Injections in the short form, and the updates that end between two of them.
INJECTIONS = 8
UPDATES_BETWEEN = 3


class Scene:
    """One database with the folders, and the findings of its runs."""

    def __init__(self, url: str, column: str, soak: Soak, reliability: Reliability) -> None:
        self.url = url
        self.column = column
        self.soak = soak
        self._reliability = reliability
        self._engines: list[Engine] = []
        self.direct = self.engine(poolclass=NullPool)
        with self.direct.begin() as connection:
            Base.metadata.drop_all(connection)
            Base.metadata.create_all(connection)

    def engine(self, url: sa.URL | str | None = None, **options: Any) -> Engine:
        """Make an engine; the scene disposes of it at the end."""
        if "poolclass" not in options:
            options = {"pool_size": CLIENTS, "max_overflow": 0, **options}
        self._engines.append(sa.create_engine(url or self.url, **options))
        return self._engines[-1]

    def close(self) -> None:
        """Release all connections, and drop the tables."""
        for engine in self._engines:
            engine.dispose()
        with self.direct.begin() as connection:
            Base.metadata.drop_all(connection)

    def empty_log(self) -> Log:
        """Begin a run with fresh folders."""
        with self.direct.begin() as connection:
            fill(connection)
        return Log()

    def listening(self, log: Log, engine: Engine) -> AbstractContextManager[None]:
        """Make the log record each COMMIT on this engine."""
        return log.listening(engine, pipelined=self.column == PIPELINED)

    def row(self, name: str) -> Row:
        return self._reliability.row(name, self.column)

    def survives(
        self,
        engine: Engine,
        chaos: Chaos,
        *,
        share: float,
        before: Callable[[], None] = go_on,
        pause: Callable[[], None] = go_on,
        injections: int = INJECTIONS,
        in_the_middle: Callable[[], None] = go_on,
        was_killed: bool = False,
    ) -> None:
        """Run the clients on this engine, inject faults, and verify everything.

        :param share: of the seconds of a server's soak test.
        :param before: clients call it before each update, and ``pause`` before each commit.
        :param was_killed: the fault ``in_the_middle`` kills the server.
        """
        log = self.empty_log()
        chance = random.Random(f"{chaos.name} {self.column}")
        clients = Clients(engine, log, chance.randrange(1000), before, pause)
        with self.listening(log, engine):
            try:
                with clients.at_work():
                    self._inject(chaos, chance, log, injections // 2, share / 2)
                    in_the_middle()
                    self._inject(chaos, chance, log, injections - injections // 2, share / 2)
                    log.wait_for(log.ended + UPDATES_BETWEEN)
            finally:
                self.row(chaos.name).injected += chaos.heal()
                clients.join()
        wrong = pool_is_wrong(engine, self.direct)
        self.verify(chaos.name, log, wrong, was_killed=was_killed)

    def _inject(
        self, chaos: Chaos, chance: random.Random, log: Log, injections: int, share: float
    ) -> None:
        for number in self.soak.rounds(short=injections, share=share):
            log.wait_for(log.ended + UPDATES_BETWEEN)
            self.row(chaos.name).injected += chaos.inject(chance)
            self.tell(chaos.name, number, log)

    def verify(
        self, name: str, log: Log, wrong_in_pool: Sequence[str], *, was_killed: bool = False
    ) -> None:
        """Fail if anything is wrong; the table records the findings in any case.

        :param was_killed: the server, in the meantime.
        """
        left = locks_left(self.direct)
        with self.direct.connect() as connection:
            found = look_on_disk(connection, log, was_killed=was_killed)
        self._count(name, log, found)
        wrong = [
            *(f"lost: {what}" for what in found.lost),
            *(f"inconsistent: {what}" for what in found.inconsistent),
            *(f"left behind: {what}" for what in left),
            *wrong_in_pool,
            *("no error for a client: " + "".join(format_exception(e)) for e in log.foreign),
        ]
        assert not wrong, "\n".join(wrong)
        assert found.acknowledged > 0

    def _count(self, name: str, log: Log, found: Found) -> None:
        row = self.row(name)
        row.acknowledged += found.acknowledged
        row.lost += len(found.lost)
        row.inconsistent += len(found.inconsistent)
        row.errors += log.errors

    def tell(self, name: str, number: int, log: Log) -> None:
        """Report progress now and then."""
        if number % 50 == 0:
            self.soak.progress(
                f"{self.column}: {name}, round {number}: {log.ended} updates, "
                f"{log.errors.total()} errors"
            )


def open_scene(database: Database, soak: Soak, reliability: Reliability) -> Scene:
    return Scene(database.url, database.column, soak, reliability)
