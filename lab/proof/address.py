"""The database's address for the page, without the secrets in its URL."""

from __future__ import annotations

import re

import sqlalchemy as sa

_PASSWORD_OF_ODBC = re.compile(r"\bPWD=(\{[^}]*\}|[^;]*)", re.IGNORECASE)


def shown(url: sa.URL) -> str:
    """Return the address without account and parameters."""
    plain = sa.URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
    return str(plain)


def secrets(url: sa.URL) -> list[str]:
    """Return the passwords in this URL, including those in ODBC's syntax."""
    words = url.query.get("odbc_connect", "")
    found = _PASSWORD_OF_ODBC.findall(words if isinstance(words, str) else ";".join(words))
    return [one for one in (url.password, *found) if one]
