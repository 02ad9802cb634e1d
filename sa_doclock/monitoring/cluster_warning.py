"""The warning, once for each engine, that a lock on one node of a cluster is unknown to the others."""

from __future__ import annotations

from threading import Lock
from typing import Final

from ..caller import warn_program
from ..dialects.base import LockStrategy
from ..errors import ClusterLockWarning
from ..options import LockOptions, is_row_lock

_ROWS: Final = (
    "row locks are local to the node.  Who has locked the same document on another node is met at "
    "COMMIT, as DeadlockDetected, and only where both have written the header row: change the "
    "header in each transaction that changes the document, and use run_transaction()"
)
_NAMES: Final = (
    "named locks are local to the node, and no COMMIT fails because another node has granted the "
    "same key: lock a row, and change it, in place of the key"
)
_mutex = Lock()


def warn_of_cluster(strategy: LockStrategy, lock: LockOptions, *, named: bool) -> None:
    """Warn before the first lock of an engine whose server is a node of a cluster.

    :param named: the lock is a key, and no row's.
    """
    if strategy.cluster is None or not is_row_lock(lock):
        return
    text = _NAMES if named else _ROWS
    with _mutex:
        if text in strategy.findings:
            return
        strategy.findings[text] = "warned"
    try:
        warn_program(
            f"this server is a node of {strategy.cluster}: {text}; or send all writers to one node",
            ClusterLockWarning,
        )
    except ClusterLockWarning:  # it is an error here, for each lock
        del strategy.findings[text]
        raise
