"""A connection beside the pool: opened to ask the server something, and then closed.

The pool may be exhausted by those who wait; what is set on a connection of one's own comes back
to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine


@contextmanager
def aside(engine: Engine, options: Mapping[str, Any]) -> Iterator[Connection]:
    """Connect as this engine does, with its credentials and the hooks of its pool.

    :param options: execution options of the connection.
    """
    own = create_engine(
        engine.url,
        pool=engine.pool.recreate(),  # which keeps creator, connect_args and listeners
        module=engine.dialect.loaded_dbapi,
    )
    try:
        with own.connect() as connection:
            yield connection.execution_options(**options)
    finally:
        own.dispose()
