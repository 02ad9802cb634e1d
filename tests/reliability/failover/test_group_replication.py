"""The primary of a group of MySQL servers is killed in the middle of a run; the group elects another.

Three members: the last of two stays read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.pool import NullPool

from lab.servers import group_replication
from tests.reliability import Reliability, Soak
from tests.reliability.failover.hosts import engine_of
from tests.reliability.failover.run import Servers, kill_process, survives
from tests.reliability.soaked import SEVERAL

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.soak]

TAKES_WRITES = "SELECT IF(@@super_read_only, 'OFF', 'ON')"  # it is set on all but the primary


class Group(Servers):
    fault = f"{SEVERAL}: Group Replication, three members"
    database = "mysql"
    program = "group-replication"

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Group]:
        group = group_replication.start()
        try:
            yield cls([member.url for member in group.nodes])
        finally:
            group.stop()

    def engine(self, **options: Any) -> Engine:
        connect = {"connect_timeout": 5}
        return engine_of(self._urls, TAKES_WRITES, connect_args=connect, **options)

    def kill(self) -> None:
        kill_process(_direct(self._urls[0]), "SELECT @@pid_file")

    def left(self) -> Sequence[Engine]:
        return sorted(map(_direct, self._urls[1:]), key=_is_read_only)


def _direct(url: str) -> Engine:
    """Return an engine whose reads wait for all that was committed on the other members before."""
    waits = {"init_command": "SET SESSION group_replication_consistency = 'BEFORE'"}
    return sa.create_engine(url, poolclass=NullPool, connect_args=waits)


def _is_read_only(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql("SELECT @@super_read_only").scalar())


def test_nothing_that_was_acknowledged_is_lost(
    start: Callable[[type[Servers]], Servers], soak: Soak, reliability: Reliability
) -> None:
    survives(start(Group), soak, reliability)
