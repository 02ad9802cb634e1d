"""The connections that are made beside a pool, to ask about the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock.dialects import strategy_for
from sa_doclock.features.diagnosis import SharedQueries
from tests.support.actors import PATIENCE


def queries_of(engine: sa.Engine) -> SharedQueries[object, object]:
    queries: SharedQueries[object, object] = strategy_for(engine).findings.setdefault(
        SharedQueries, SharedQueries(under_asyncio=engine.dialect.is_async)
    )
    return queries


@contextmanager
def side_connections(engine: sa.Engine, asking: int) -> Iterator[list[str]]:
    """Write down what is made beside the pool, whose connections are open already.

    The first waits until so many have asked: as on a server that takes its time to connect.
    """
    seen: list[str] = []
    queries = queries_of(engine)

    def made(*_: object) -> None:
        seen.append("made")
        for _attempt in range(int(PATIENCE * 1000)):
            if len(queries._answers) >= asking:
                return
            Event().wait(0.001)

    def closed(*_: object) -> None:
        seen.append("closed")

    event.listen(engine, "connect", made)
    event.listen(engine, "close", closed)
    yield seen
    event.remove(engine, "connect", made)
    event.remove(engine, "close", closed)
