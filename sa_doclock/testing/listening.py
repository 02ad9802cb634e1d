"""listening(): functions that are called for events of SQLAlchemy in a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event


@contextmanager
def listening(*listeners: tuple[Any, str, Callable[..., Any]]) -> Iterator[None]:
    """Have functions called in the block: each by its target, the name of an event, and itself."""
    for listener in listeners:
        event.listen(*listener)
    try:
        yield
    finally:
        for listener in listeners:
            event.remove(*listener)
