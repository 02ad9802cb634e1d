"""The frames of a driver in the traceback of an error, which show how far it got with a statement."""

from __future__ import annotations

from collections.abc import Collection
from traceback import walk_tb
from types import FrameType

from sqlalchemy import Connection


def raised_within(connection: Connection, error: BaseException, methods: Collection[str]) -> bool:
    """Return whether the error comes from a call inside one of these methods of the driver.

    An error raised by the method itself concerns its arguments: nothing was sent.

    :param methods: the methods that send a statement and read its answer, or parts of that.
    """
    callers = _frames_of(error)[:-1]
    named = [frame for frame in callers if frame.f_code.co_name in methods]
    return any(_is_of_driver(connection, frame) for frame in named)


def raised_by_driver(connection: Connection, error: BaseException) -> bool:
    """Return whether the error is the driver's, or its socket's, or was raised by the driver's code.

    An error of other code that was called there, such as a signal handler, does not count.
    """
    if isinstance(error, (OSError, connection.dialect.loaded_dbapi.Error)):
        return True
    if connection.invalidated or connection.closed:
        return False  # its driver connection is gone
    return any(_is_of_driver(connection, frame) for frame in _frames_of(error)[-1:])


def _frames_of(error: BaseException) -> list[FrameType]:
    """Return the frames down to the one that raised the error.

    Some codecs are in C and have no frame.  Frames of codecs in Python are dropped too: their
    caller counts as raising the error.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    while frames and _package_of(frames[-1]) == "encodings":
        frames.pop()
    return frames


def _is_of_driver(connection: Connection, frame: FrameType) -> bool:
    package, *_ = type(connection.connection.driver_connection).__module__.split(".")
    return _package_of(frame) == package


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).split(".")[0]
