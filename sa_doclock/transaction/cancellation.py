"""The connection of a statement that Ctrl-C, or the cancellation of a task, has interrupted."""

from __future__ import annotations

from contextlib import suppress
from traceback import walk_tb

from sqlalchemy.engine import ExceptionContext

from ..dialects import find_strategy


def interruption_of(context: ExceptionContext) -> BaseException | None:
    """Have the connection given up after Ctrl-C or a cancellation, as SQLAlchemy does where it can.

    The driver may meet it at a place where it reckons with none.  What comes out then is an error
    of its own, as psycopg's AssertionError out of its pipeline, and where it stands with the
    server nobody knows any more.

    :returns: the interruption, to be raised.
    """
    assert context.connection is not None
    error: BaseException | None = context.original_exception
    if not isinstance(error, Exception):
        strategy = find_strategy(context.connection)
        if strategy is not None and not context.connection.dialect.is_async:
            with suppress(Exception):
                cursor = getattr(context.execution_context, "cursor", None)
                strategy.interrupted(context.connection, cursor)
        return None
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    while isinstance(error, Exception):
        error = error.__context__
    if error is None or error.__traceback__ is None:
        return None
    if error.__traceback__.tb_frame not in frames:
        return None  # the caller's, who handles it by this statement
    context.is_disconnect = True
    return error
