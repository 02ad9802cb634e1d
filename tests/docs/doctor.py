"""The sections of docs/doctor.md: one for each check, from the docstring of its function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sa_doclock.tools.doctor import (
    Check,
    checkouts,
    every_database,
    innodb,
    mariadb,
    models,
    mssql,
    mysql,
    postgresql,
    sqlite,
)

GROUPS: Final[Mapping[str, Sequence[Check]]] = {
    "Every database": every_database.CHECKS,
    "Tables of documents": models.CHECKS,
    "Check-outs": checkouts.CHECKS,
    "PostgreSQL": postgresql.CHECKS,
    "MySQL and MariaDB": innodb.CHECKS,
    "MySQL": mysql.CHECKS,
    "MariaDB": mariadb.CHECKS,
    "SQL Server": mssql.CHECKS,
    "SQLite": sqlite.CHECKS,
}


def sections() -> Iterator[str]:
    """Yield a section for each group of checks, with a smaller one for each check in it."""
    for group, checks in GROUPS.items():
        yield f"## {group}"
        yield ""
        for check in checks:
            yield f"### {check.code}"
            yield ""
            yield f"*{check.severity}*. {' '.join(check.description.split())}"
            yield ""
