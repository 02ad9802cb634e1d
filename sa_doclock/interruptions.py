"""Interruptions: Ctrl-C, a cancelled task, SystemExit, a closed generator.

The library's own questions to a server never swallow or replace one.  The driver, or the cleanup
after the question, may: aiomysql raises InterfaceError, and psycopg AssertionError, instead of
CancelledError.
"""

from __future__ import annotations

import sys

from sqlalchemy import Connection


def interruption_behind(
    error: BaseException | None, handled: BaseException | None
) -> BaseException | None:
    """Return the interruption that an error has replaced, or None.

    :param handled: the error that the caller was handling before.
    """
    while error is not None and error is not handled:
        if not isinstance(error, Exception):
            return error
        error = error.__context__
    return None


class Interruptible:
    """A block that raises an interruption unchanged, even if another error replaced it.

    :param connection: invalidated then, as by an interrupted statement of SQLAlchemy: its state is
        unknown.
    """

    __slots__ = ("_connection", "_handled")

    def __init__(self, connection: Connection | None = None) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._handled = sys.exc_info()[1]

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        interruption = interruption_behind(error, self._handled)
        if interruption is not None:
            connection = self._connection
            if not (connection is None or connection.closed or connection.invalidated):
                connection.invalidate(interruption)
            if interruption is not error:
                raise interruption
        return self._ignores(error)

    def _ignores(self, error: BaseException | None) -> bool:
        return False


class ErrorsIgnored(Interruptible):
    """A block whose errors are ignored, except an interruption, or an error that replaced one."""

    __slots__ = ()

    def _ignores(self, error: BaseException | None) -> bool:
        return isinstance(error, Exception)
