"""A lock on one node of a cluster keeps nobody out on the others: said once for each engine."""

from __future__ import annotations

from threading import Lock
from typing import Final
from weakref import WeakSet

from ..caller import warn_program
from ..dialects.base import LockStrategy
from ..errors import ClusterLockWarning
from ..options import LockOptions, is_row_lock

_ROWS: Final = (
    "row locks are local to the node.  Who has locked the same document on another node is met "
    "at COMMIT, as DeadlockDetected, and only where both have written the "
    "header row: change the header in each transaction that changes the document, and use "
    "run_transaction()"
)
_NAMES: Final = (
    "named locks are local to the node, and no COMMIT fails because another node has granted the "
    "same key: lock a row, and change it, in place of the key"
)
_told_of_rows: WeakSet[LockStrategy] = WeakSet()
_told_of_names: WeakSet[LockStrategy] = WeakSet()
_guard = Lock()


def warn_of_cluster(strategy: LockStrategy, lock: LockOptions, *, named: bool) -> None:
    """Warn before the first lock of an engine whose server is a node of a cluster.

    :param named: the lock is a key, and no row's.
    """
    if strategy.cluster is None or not is_row_lock(lock):
        return
    told, text = (_told_of_names, _NAMES) if named else (_told_of_rows, _ROWS)
    with _guard:
        if strategy in told:
            return
        told.add(strategy)
    try:
        warn_program(
            f"this server is a node of {strategy.cluster}: {text}; or send all writers to one node",
            ClusterLockWarning,
        )
    except ClusterLockWarning:  # it is an error here, for each lock
        told.discard(strategy)
        raise
