"""The savepoints of a session, and what was held when each of them was set.

A server gives up what was locked in a savepoint when it rolls it back.  SQLAlchemy's event comes
later, and after an interruption, or an error of another listener, it does not come at all.  So the
event is only one of the moments when the marks are compared with the savepoints that SQLAlchemy
has: what a session says that it holds is never more than what the server holds.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session, SessionTransaction

from ..sqlalchemy_internals import savepoints_of
from .connection import Mark

Savepoints = dict[SessionTransaction, Mark]
"""The marks of the moments when the savepoints of a session were set, the outermost first."""


def settle(savepoints: Savepoints, session: Session, roll_back_to: Callable[[Mark], None]) -> None:
    """Forget what was done in savepoints that are rolled back.

    :param roll_back_to: forgets what came since a mark; a second time it forgets nothing.
    """
    known = savepoints_of(session)
    undone = next((mark for one, mark in savepoints.items() if known.get(one, True)), None)
    if undone is not None:
        roll_back_to(undone)
    # Last, so that an interruption before it changes nothing.
    for ended in [one for one in savepoints if one not in known]:
        del savepoints[ended]
