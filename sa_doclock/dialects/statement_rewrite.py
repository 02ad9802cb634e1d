"""Text in front of a SELECT, where SQLAlchemy can write none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event


@contextmanager
def rewritten_statements(
    connection: Connection, rewrite: Callable[[str, Any], str], *words: str
) -> Iterator[None]:
    """Rewrite the statements of this block that have one of these words in them.

    The listener is the connection's own and goes with the block: no other statement pays for it.

    :param rewrite: is given the text and the parameters as the driver will get them.
    """

    def before_cursor_execute(
        _connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        if any(word in statement for word in words):
            statement = rewrite(statement, parameters)
        return statement, parameters

    event.listen(connection, "before_cursor_execute", before_cursor_execute, retval=True)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", before_cursor_execute)
