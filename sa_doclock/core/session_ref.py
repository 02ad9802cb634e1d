"""References to a session that do not keep it alive.

A Session that nobody refers to any more is freed at once, and what it has loaded with it.  One
that its own objects refer to would wait for the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import ref

S = TypeVar("S")

if TYPE_CHECKING:

    def session_ref(session: S) -> Callable[[], S]:
        """The session, when it is called; only what the session alone calls may do so."""

else:
    session_ref = ref  # each session has half a dozen: no function of ours around it
