"""Connections of our own, beside the pool, for what the library asks a server by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine


@contextmanager
def side_connection(engine: Engine, options: Mapping[str, Any]) -> Iterator[Connection]:
    """Connect as this engine does, but outside of its pool, to ask about the server.

    The pool may be exhausted by sessions that wait.  A setting of this connection reaches no pool.

    :param options: execution options of the connection.
    """
    with side_engine(engine) as own, own.connect() as connection:
        yield connection.execution_options(**options)


@contextmanager
def side_engine(engine: Engine) -> Iterator[Engine]:
    """Make an engine that connects as this one does, with a pool of its own, for this block."""
    own = _copy_of(engine)
    try:
        yield own
    finally:
        own.dispose()


def _copy_of(engine: Engine) -> Engine:
    arguments: dict[str, Any] = {
        "pool": engine.pool.recreate(),  # which keeps creator, connect_args and listeners
        "module": engine.dialect.loaded_dbapi,
    }
    if not engine.dialect.is_async:
        return create_engine(engine.url, **arguments)
    # One URL may stand for two drivers.  Imported here, as it needs greenlet.
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    return create_async_engine(engine.url, **arguments).sync_engine
