"""The sections of docs/doctor.md: one for each check, from the docstring of its function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sa_doclock.tools.doctor import (
    Check,
    checkouts,
    checks_in,
    every_database,
    innodb,
    mariadb,
    models,
    mssql,
    mysql,
    postgresql,
    postgresql_poolers,
    sqlite,
)

GROUPS: Final[Mapping[str, Sequence[Check]]] = {
    "Every database": checks_in(every_database),
    "Tables of documents": checks_in(models),
    "Check-outs": checks_in(checkouts),
    "PostgreSQL": checks_in(postgresql, postgresql_poolers),
    "MySQL and MariaDB": checks_in(innodb),
    "MySQL": checks_in(mysql),
    "MariaDB": checks_in(mariadb),
    "SQL Server": checks_in(mssql),
    "SQLite": checks_in(sqlite),
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
