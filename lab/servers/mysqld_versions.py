"""Older versions of MySQL and MariaDB: packages of Debian and Ubuntu, unpacked.

``python -m lab.servers mysql-8.0 --for -- COMMAND...`` runs a command on one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from lab.servers import mariadb, mysql
from lab.servers.model import Server

STARTS: Mapping[str, Callable[[], Server]] = {
    "mysql-8.0": partial(mysql.start, "noble"),
    "mysql-8.4": partial(mysql.start, "resolute"),
    "mysql-9.7": partial(mysql.start, "sid"),
    "mariadb-10.6": partial(mariadb.start, "jammy"),
    "mariadb-10.11": partial(mariadb.start, "bookworm"),
    "mariadb-11.8": partial(mariadb.start, "sid"),
}
