"""listening(): calls functions for events of SQLAlchemy in a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event


@contextmanager
def listening(*listeners: tuple[Any, str, Callable[..., Any]]) -> Iterator[None]:
    """Call functions for events in the block; each listener is a target, an event's name and a
    function.
    """
    for listener in listeners:
        event.listen(*listener)
    try:
        yield
    finally:
        for listener in listeners:
            event.remove(*listener)
