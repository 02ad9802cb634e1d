"""Throw-away database servers for the tests: by URL, by Docker, or from packages unpacked here.

For each database, the first of these ways that works is used:

1. the URL in ``SA_DOCLOCK_TEST_POSTGRESQL_URL``, ``_MYSQL_URL``, ``_MARIADB_URL``, ``_MSSQL_URL``;
2. Docker, if its engine answers, with the services of docker-compose.yml;
3. an installed server, PostgreSQL's wheel, or Debian packages unpacked into a cache folder.

``SA_DOCLOCK_TEST_SERVERS=oldest`` makes the third way choose PostgreSQL 14 (16, the older version in the
wheel, without npm) and MariaDB 10.11 instead of the newest. SQL Server has no third way. SQLite needs no server.

``postgresql-12`` to ``postgresql-18``, ``mysql-8.0``, ``mariadb-10.6`` and so on are these versions, by
the third way only (postgresql_versions.py, mysqld_versions.py). The matrix runs no test on them, unless it
gets their URL, as in ``make versions``:
``python -m lab.servers postgresql-14 --for -- make test ARGS="--databases postgresql"``.
"""

from __future__ import annotations

from lab.servers.find import find_servers, start_private, why_unobtainable
from lab.servers.model import NAMES, Missing, Server, UnavailableError, url_variable

__all__ = [
    "NAMES",
    "Missing",
    "Server",
    "UnavailableError",
    "find_servers",
    "start_private",
    "url_variable",
    "why_unobtainable",
]
