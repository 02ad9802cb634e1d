"""The same two operations on a document, in as many ways as there are libraries.

``update``: lock the header, read its details, change one, total again, commit.
``load``: lock the header for reading, read its details, end the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Way(NamedTuple):
    """One way; each operation is given the number of a document."""

    name: str
    update: Callable[[int], object]
    load: Callable[[int], object]
    close: Callable[[], object] = lambda: None


def nothing() -> None:
    """Engines are disposed by their database."""
