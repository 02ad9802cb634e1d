"""The cluster of a server: Galera, or Group Replication; a dialect may omit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from sqlalchemy import Connection

from ..caller import warn_program
from ..errors import ClusterLockWarning, with_background

_ROWS: Final = (
    "row locks are local to the node.  If two nodes lock the same document, one COMMIT raises "
    "DeadlockDetected, but only if both transactions write the header row: change the header in each "
    "transaction that changes the document, and use run_transaction()"
)
_NAMES: Final = (
    "named locks are local to the node, and both COMMITs succeed if another node grants the same "
    "key: lock a row, and change it, instead of the key"
)
# Any InnoDB row serves, and every account may read these.
_FIND_ABORT = "SELECT 1 FROM information_schema.schemata LIMIT 1"
_mutex = Lock()


class Cluster:
    """A cluster whose other nodes may end a transaction of this one.

    :ivar name: its name in a warning, if other nodes accept writes too and do not know this one's
        locks; None: only this node accepts writes.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name

    def listeners(self, holds_locks: Callable[[], bool]) -> Mapping[str, Callable[..., None]]:
        """Return listeners for events of a Connection: they notice that another node ends its transaction.

        :param holds_locks: returns whether the transaction holds locks.
        """
        return {}


class Galera(Cluster):
    """https://mariadb.com/kb/en/galera-cluster-system-variables/; Percona XtraDB Cluster has the same."""

    def listeners(self, holds_locks: Callable[[], bool]) -> Mapping[str, Callable[..., None]]:
        def before_rollback(connection: Connection) -> None:
            # If another node's commit ended the transaction, and no statement has failed since, the
            # first ROLLBACK fails with 1213, but not the second, SQLAlchemy's.
            driver_error: Any = connection.dialect.loaded_dbapi.Error
            if not (connection.closed or connection.invalidated):
                with suppress(driver_error):
                    connection.connection.rollback()

        return {"rollback": before_rollback}


class GroupReplication(Cluster):
    """https://dev.mysql.com/doc/refman/en/group-replication-system-variables.html."""

    def listeners(self, holds_locks: Callable[[], bool]) -> Mapping[str, Callable[..., None]]:
        def before_savepoint(connection: Connection, _name: str) -> None:
            # It may begin another transaction without an error.
            if holds_locks():
                self.find_abort(connection)

        return {"savepoint": before_savepoint}

    def find_abort(self, connection: Connection) -> None:
        """Send a statement that fails if the server has ended the transaction.

        A member applies the commits of others, and ends local transactions that block them: on a
        secondary, a SharedRead.
        """
        connection.exec_driver_sql(_FIND_ABORT)


def warn_of_lock(cluster: Cluster, warned: dict[Any, Any], *, named: bool) -> None:
    """Warn before the first lock of an engine, if other nodes of the cluster do not know it.

    :param warned: the texts of earlier warnings for the engine.
    :param named: the lock is on a key, not on a row.
    """
    text = _NAMES if named else _ROWS
    with _mutex:
        if cluster.name is None or text in warned:
            return
        warned[text] = True
    try:
        warn_program(
            with_background(
                f"this server is a node of {cluster.name}: {text}; or send all writers to one node",
                "warning",
                "local_to_a_node",
            ),
            ClusterLockWarning,
        )
    except ClusterLockWarning:  # the program made it an error, raised for every lock
        del warned[text]
        raise


def cluster_of(settings: Mapping[str, str]) -> Cluster | None:
    """Return the cluster according to these server settings, or None."""
    if settings.get("wsrep_on") == "ON" and settings.get("wsrep_provider") not in {"", "NONE"}:
        return Galera("a Galera cluster")
    if not settings.get("group_replication_group_name"):
        return None
    several = settings.get("group_replication_single_primary_mode") == "OFF"
    return GroupReplication("a group of several primaries (Group Replication)" if several else None)
