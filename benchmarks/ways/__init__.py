"""The same two operations on a document, implemented with each library.

``update``: lock the header, read its details, change one, total again, commit.
``load``: lock the header for reading, read its details, end the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Way(NamedTuple):
    """One implementation; each operation gets a document number."""

    name: str
    update: Callable[[int], object]
    load: Callable[[int], object]
    close: Callable[[], object] = lambda: None


def nothing() -> None:
    """Do nothing: each database disposes of its engines."""
