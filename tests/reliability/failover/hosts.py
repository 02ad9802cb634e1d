"""One engine for several servers: MySQL's drivers connect to one host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine, event


def engine_of(urls: Sequence[str], takes_writes: str, **options: Any) -> Engine:
    """Return an engine whose connections lead to the first server that takes writes.

    :param takes_writes: a query whose last column says ``ON`` there.
    """
    engine = sa.create_engine(urls[0], **options)
    addresses = [(url.host, url.port) for url in map(sa.make_url, urls)]

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _record: Any, arguments: Any, parameters: dict[str, Any]) -> Any:
        refused = dialect.loaded_dbapi.OperationalError("no server takes writes")
        for host, port in addresses:
            there = {**parameters, "host": host, "port": port}
            try:
                connection = dialect.connect(*arguments, **there)
                with connection.cursor() as cursor:
                    cursor.execute(takes_writes)
                    answer = cursor.fetchone()
                if answer and answer[-1] == "ON":
                    return connection
                connection.close()
            except dialect.loaded_dbapi.OperationalError as error:
                refused = error
        raise refused

    return engine
