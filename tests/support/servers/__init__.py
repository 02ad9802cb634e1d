"""Throw-away database servers for the tests: by URL, by Docker, or from what can be unpacked here.

For each database the first way that applies is taken:

1. the URL in ``SA_DOCLOCK_TEST_POSTGRESQL_URL``, ``_MYSQL_URL``, ``_MARIADB_URL``, ``_MSSQL_URL``;
2. Docker, where its engine answers, with the services of docker-compose.yml;
3. an installed server, PostgreSQL's wheel, or Debian packages unpacked into a cache folder.

``SA_DOCLOCK_TEST_SERVERS=oldest`` asks the third way for the oldest versions that it can get
instead of the newest. SQL Server has no third way. SQLite needs no server and is not here.

``postgresql-14`` to ``postgresql-18`` are PostgreSQL of these major versions, by the third way alone
(postgresql_versions.py). No test of the matrix runs on them, but where their URL is given to it:
``python -m tests.support.servers postgresql-14 --for -- make test ARGS="--databases postgresql"``.
"""

from __future__ import annotations

from tests.support.servers.find import find_servers, start_private, why_unobtainable
from tests.support.servers.model import NAMES, Missing, Server, UnavailableError, url_variable

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
