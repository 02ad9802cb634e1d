"""Interruptions: Ctrl-C, a cancelled task, SystemExit, a closed generator.

A question that the library asks a server by itself never swallows or replaces one.  The driver, or
the cleanup behind the question, may: aiomysql raises InterfaceError, and psycopg AssertionError, in place
of CancelledError.
"""

from __future__ import annotations

import sys

from sqlalchemy import Connection


def interruption_behind(
    error: BaseException | None, handled: BaseException | None
) -> BaseException | None:
    """Return the interruption in whose place an error came out; None: there was none.

    :param handled: the error that the caller was handling before.
    """
    while error is not None and error is not handled:
        if not isinstance(error, Exception):
            return error
        error = error.__context__
    return None


class Interruptible:
    """A block out of which an interruption comes as it is, whatever is raised in its place.

    :param connection: is invalidated then, as by a statement of SQLAlchemy that is interrupted: nobody
        knows where the driver stands with the server.
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
    """A block whose errors are ignored, but for an interruption, or an error in its place."""

    __slots__ = ()

    def _ignores(self, error: BaseException | None) -> bool:
        return isinstance(error, Exception)
