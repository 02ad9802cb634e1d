"""The plan of a run: its size, its locks, and the steps that its seed determines."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ....options import GuardMode, LockOptions
from .tables import LARGEST, NAMES, State


class Operation(enum.Enum):
    """The operations of a thread on a document."""

    UPSERT = "upsert"  # set a detail, recalculate the total
    DELETE = "delete"  # delete a detail, recalculate the total
    MOVE = "move"  # move value between two details; the header stays unchanged
    LOAD = "load"  # read and check


class WorkloadStep(NamedTuple):
    """One operation, with its random choices."""

    operation: Operation
    document: int
    name: str
    other: str  # the target of a MOVE
    value: int


@dataclass(frozen=True)
class Plan:
    """One run.

    :ivar locks: False: plain reads instead of locks, otherwise identical.
    :ivar details_only: the writers MOVE; otherwise they UPSERT and DELETE.
    :ivar read: the lock of a LOAD.
    :ivar whole: read documents with get_document() instead of get_entity().
    :ivar seed: the same seed gives every thread the same steps.
    """

    documents: int = 5
    threads: int = 30
    iterations: int = 50
    locks: bool = True
    details_only: bool = False
    read: LockOptions = LockOptions.SharedRead
    whole: bool = False
    seed: int = 0

    def lock_of(self, operation: Operation) -> LockOptions:
        """Return the lock with which this operation reads its document."""
        if not self.locks:
            return LockOptions.None_
        return self.read if operation is Operation.LOAD else LockOptions.ForUpdate

    @property
    def guard(self) -> GuardMode:
        """Without locks, a run makes writes that the guard would refuse."""
        return "raise" if self.locks else "off"

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of this run, equally likely."""
        if self.details_only:
            return Operation.MOVE, Operation.LOAD
        return Operation.UPSERT, Operation.DELETE, Operation.LOAD

    @property
    def total_steps(self) -> int:
        """The steps of all threads."""
        return self.threads * self.iterations

    def first_states(self) -> dict[int, State]:
        """The documents at the start, with every detail."""
        rng = self._random("documents")
        return {
            number: {name: rng.randint(0, LARGEST) for name in NAMES}
            for number in range(self.documents)
        }

    def steps(self, thread: int) -> Iterator[WorkloadStep]:
        """Yield the steps of one thread."""
        rng = self._random(f"thread {thread}")
        for _ in range(self.iterations):
            operation = rng.choice(self.operations)
            document = rng.randrange(self.documents)
            name, other = rng.sample(NAMES, 2)
            yield WorkloadStep(operation, document, name, other, rng.randint(0, LARGEST))

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}, {purpose}")  # noqa: S311  # a test, not a secret
