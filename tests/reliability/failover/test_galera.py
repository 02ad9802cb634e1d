"""A node of a Galera cluster is killed in the middle of a run; all clients go on at another.

Three nodes: of two, the one that is left has no majority, and takes no writes.  All clients work on the
same node at a time, where locks are as on one server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.pool import NullPool

from lab.servers import galera
from tests.reliability import Reliability, Soak
from tests.reliability.failover.hosts import engine_of
from tests.reliability.failover.run import Servers, kill_process, survives
from tests.reliability.soaked import SEVERAL

pytestmark = [
    *(pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.soak),
    pytest.mark.filterwarnings("ignore::sa_doclock.ClusterLockWarning"),
]

TAKES_WRITES = "SHOW STATUS LIKE 'wsrep_ready'"
# A read waits until the node has applied what was committed on the other ones before.
CAUGHT_UP = {"connect_timeout": 5, "init_command": "SET SESSION wsrep_sync_wait = 1"}


class Galera(Servers):
    fault = f"{SEVERAL}: Galera, three nodes"
    database = "mariadb"
    program = "galera"

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Galera]:
        cluster = galera.start(3, patient=False)
        try:
            yield cls([node.url for node in cluster.nodes])
        finally:
            cluster.stop()

    def engine(self, **options: Any) -> Engine:
        return engine_of(self._urls, TAKES_WRITES, connect_args=CAUGHT_UP, **options)

    def kill(self) -> None:
        kill_process(_direct(self._urls[0]), "SELECT @@pid_file")

    def left(self) -> Sequence[Engine]:
        return [_direct(url) for url in self._urls[1:]]


def _direct(url: str) -> Engine:
    return sa.create_engine(url, poolclass=NullPool, connect_args=CAUGHT_UP)


def test_nothing_that_was_acknowledged_is_lost(
    start: Callable[[type[Servers]], Servers], soak: Soak, reliability: Reliability
) -> None:
    survives(start(Galera), soak, reliability)
