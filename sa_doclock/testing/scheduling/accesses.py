"""The conflict relation: whether the order of two steps can matter.

A step is a statement, a COMMIT or a ROLLBACK.  It has a set of accesses: the rows that it reads,
locks or writes, and, at the end of a transaction, all those of the transaction again, as ended.
Two steps conflict when two of their accesses share a row, and one of them can change what the other
one sees, or who waits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Optional


class Mode(Enum):
    """The ways to use a row."""

    SNAPSHOT_READ = auto()  # a plain read that neither waits nor sees uncommitted changes
    READ = auto()  # a plain read that may do both
    SHARE = auto()  # a shared lock
    LOCK = auto()  # an exclusive lock
    CHANGE = auto()  # a write of a row that the transaction has locked exclusively
    WRITE = auto()


_CONFLICTS: Final = frozenset(
    frozenset(pair)
    for pair in (
        (Mode.READ, Mode.LOCK),
        (Mode.READ, Mode.CHANGE),
        (Mode.READ, Mode.WRITE),
        (Mode.SHARE, Mode.LOCK),
        (Mode.SHARE, Mode.WRITE),
        (Mode.LOCK, Mode.LOCK),
        (Mode.LOCK, Mode.WRITE),
        (Mode.WRITE, Mode.WRITE),
    )
)
_WITH_ENDED: Final = _CONFLICTS | {frozenset((Mode.SNAPSHOT_READ, Mode.WRITE))}
# As in the checks of a serializable database.
_BOTH_ENDED: Final = frozenset({frozenset((Mode.READ, Mode.WRITE))})


@dataclass(frozen=True)
class Access:
    """One way in which a step uses rows.

    :ivar table: its name; None: any table.
    :ivar key: the primary key of the only row; None: any row.
    :ivar ended: this step ends the transaction: others see its writes, its locks are released.
    """

    mode: Mode
    table: str | None = None
    key: Optional[Hashable] = None  # noqa: UP045  # Python 3.10 has no `|` for Hashable
    ended: bool = False

    def overlaps(self, other: Access) -> bool:
        """Return whether the two may use the same row."""
        if self.table is None or other.table is None:
            return True
        if self.table != other.table:
            return False
        return self.key is None or other.key is None or self.key == other.key

    def covers(self, other: Access) -> bool:
        """Return whether this one covers all rows of the other."""
        if self.table is None:
            return True
        return self.table == other.table and (self.key is None or self.key == other.key)

    def conflicts(self, other: Access) -> bool:
        """Return whether the order of the two can matter."""
        if self.ended and other.ended:
            modes = _BOTH_ENDED
        else:
            modes = _WITH_ENDED if self.ended or other.ended else _CONFLICTS
        return frozenset((self.mode, other.mode)) in modes and self.overlaps(other)


Accesses = frozenset[Access]

ANYTHING: Final[Accesses] = frozenset({Access(Mode.WRITE), Access(Mode.WRITE, ended=True)})
"""The accesses of an unknown step."""


def conflict(accesses: Accesses, others: Accesses) -> bool:
    """Return whether the order of two steps can matter."""
    return any(mine.conflicts(theirs) for mine in accesses for theirs in others)


class TransactionAccesses:
    """The accesses of one transaction, from its first statement on.

    :ivar number: shared by its steps.
    :ivar level: the isolation level that a statement set; ``""``: unknown; None: the connection's.
    """

    def __init__(self, number: int = 0, level: str | None = None) -> None:
        self.number, self.level = number, level
        self._made: set[Access] = set()
        self._held: set[Access] = set()

    @property
    def began(self) -> bool:
        """True if a statement has used a row."""
        return bool(self._made)

    def new(self, accesses: Accesses) -> Accesses:
        """Return the accesses that add a conflict to what the transaction has already locked."""
        found = (self._reduced(access) for access in accesses)
        return frozenset(access for access in found if access is not None)

    def add(self, accesses: Accesses) -> None:
        """Record the accesses of a successful statement."""
        self._made |= accesses
        self._held |= accesses

    def forget_locks(self) -> None:
        """Record that a rollback to a savepoint released some of the locks."""
        self._held.clear()

    def conflicts(self, accesses: Accesses) -> bool:
        """Return whether a step of another transaction conflicts with one of this."""
        return conflict(frozenset(self._made), accesses)

    def ended(self) -> Accesses:
        """Return the accesses of the end of the transaction."""
        return at_end(frozenset(self._made))

    def _reduced(self, access: Access) -> Access | None:
        if access.ended:
            return access
        held = {held_access.mode for held_access in self._held if held_access.covers(access)}
        if Mode.WRITE in held:
            return None
        if Mode.LOCK not in held:
            return access
        if Mode.CHANGE in held or access.mode is not Mode.WRITE:
            return None
        return replace(access, mode=Mode.CHANGE)


def at_end(accesses: Accesses) -> Accesses:
    """Return these accesses as of the end of their transaction."""
    return frozenset(
        replace(access, ended=True, mode=Mode.WRITE if access.mode is Mode.CHANGE else access.mode)
        for access in accesses
        if access.mode is not Mode.SNAPSHOT_READ
    )
