"""The clusters of MySQL and MariaDB: Galera and Group Replication."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection

from .cluster import Cluster

# Any row of InnoDB will do, and every account may read these.
_FIND_ABORT = "SELECT 1 FROM information_schema.schemata LIMIT 1"


class Galera(Cluster):
    """https://mariadb.com/kb/en/galera-cluster-system-variables/; Percona XtraDB Cluster has the same."""

    def before_rollback(self, connection: Connection) -> None:
        # Where another node's commit has ended the transaction, and no statement has failed since,
        # the first ROLLBACK fails with 1213; the second, which is SQLAlchemy's, does not.
        driver_error: Any = connection.dialect.loaded_dbapi.Error
        if not (connection.closed or connection.invalidated):
            with suppress(driver_error):
                connection.connection.rollback()


class GroupReplication(Cluster):
    """https://dev.mysql.com/doc/refman/en/group-replication-system-variables.html."""

    def before_savepoint(self, connection: Connection) -> None:
        # A member applies what another one has committed, and ends who is in the way of it: on a
        # secondary, a SharedRead.
        connection.exec_driver_sql(_FIND_ABORT)


def cluster_of(settings: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that these settings of a server tell of."""
    if settings.get("wsrep_on") == "ON" and settings.get("wsrep_provider") not in {"", "NONE"}:
        return Galera("a Galera cluster")
    if not settings.get("group_replication_group_name"):
        return None
    several = settings.get("group_replication_single_primary_mode") == "OFF"
    return GroupReplication("a group of several primaries (Group Replication)" if several else None)
