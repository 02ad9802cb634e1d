"""The waits for a lock inside of this process, which no server sees: at a gate, between two tries.

The test kit is told of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

wait_observer: ContextVar[Callable[[], AbstractContextManager[None]] | None] = ContextVar(
    "sa_doclock.wait_observer", default=None
)
"""Makes the block in which this thread or task waits; None where nobody is to be told."""


def observed_wait() -> AbstractContextManager[None]:
    """Return the block for a wait, of which the observer is told."""
    observe = wait_observer.get()
    return nullcontext() if observe is None else observe()
