"""Condition: how a transaction stands, and the moves from one condition to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from ...errors import REPOSITORY


class Condition(Enum):
    """The condition of a LockTransaction, from the best to the worst; the worst failure decides.

    ::

                                     an error
             OPEN  ------------------------------------------------------.
             ^ |                                                         |
             | |                   .-- HALF_DONE <--.                    |
             | |     ROLLBACK TO   |       |        |                    |
             | |     SAVEPOINT,    +-- ABORTED  <---+   a worse error    |
             | |     or the        |       |        | <------------------'
             '-(---- server's <----+-- REFUSED  <---+   goes down
               |     answer        |       |        |
               |                   '-- IN_DOUBT <---'
               |                           |
               |                         LOST
               v                           |
           COMMITTED  (also from ABORTED   |
               |       and IN_DOUBT)       |
               '-------> INHERITED <-------'   os.fork(), from each of them

    A transaction that is LOST, COMMITTED or INHERITED stays so until the session drops it.
    """

    OPEN = 0
    """Everything is allowed."""
    HALF_DONE = 1
    """An exception left an inner locked() block: COMMIT would save a half, and is refused."""
    ABORTED = 2
    """An error aborted it at the server, which would answer COMMIT by ROLLBACK: COMMIT is refused."""
    REFUSED = 3
    """A lock failed, or a write had none: everything but a rollback is refused."""
    IN_DOUBT = 4
    """An error may have ended it at the server, which is asked before anything else is sent."""
    LOST = 5
    """The server rolled it back by itself: everything but the rollback of the whole is refused."""
    COMMITTED = 6
    """The databases have committed; the session drops it next."""
    INHERITED = 7
    """It belongs to the process that forked this one, in which it is refused."""


def _moves(names: str) -> frozenset[Condition]:
    return frozenset(Condition[name] for name in names.split())


MOVES: Final[Mapping[Condition, frozenset[Condition]]] = MappingProxyType(
    {
        Condition.OPEN: _moves("HALF_DONE ABORTED REFUSED IN_DOUBT LOST COMMITTED INHERITED"),
        Condition.HALF_DONE: _moves("OPEN ABORTED REFUSED IN_DOUBT LOST INHERITED"),
        # The driver may know that a rollback of the program's own has cured it.
        Condition.ABORTED: _moves("OPEN HALF_DONE REFUSED IN_DOUBT LOST COMMITTED INHERITED"),
        Condition.REFUSED: _moves("OPEN HALF_DONE ABORTED IN_DOUBT LOST INHERITED"),
        # The error of a statement that a listener sends within COMMIT.
        Condition.IN_DOUBT: _moves("OPEN HALF_DONE ABORTED REFUSED LOST COMMITTED INHERITED"),
        Condition.LOST: _moves("INHERITED"),
        Condition.COMMITTED: _moves("INHERITED"),
        Condition.INHERITED: _moves(""),
    }
)
"""To which conditions each of them may change."""


def illegal_move(before: Condition, after: Condition) -> RuntimeError:
    """Return the error of a move that is none of :data:`MOVES`."""
    return RuntimeError(
        f"a transaction that is {before.name} cannot become {after.name}: this is a bug of "
        f"sa_doclock, not of the program. Roll back, and report it at {REPOSITORY}/issues"
    )
