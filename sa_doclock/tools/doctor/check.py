"""Check: one question; Subject: the engine and models to check; Finding: the answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Mapper

from ...core.documents import own_table, parts_of
from ...dialects import FoundServer, LockFeature, schema_of
from ...dialects.base import LockStrategy
from ...errors import DOCS, LockNotSupported

Severity = Literal["error", "warning", "info"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""The severities, the worst first."""

PAGE: Final = f"{DOCS}/doctor.html"


@dataclass(frozen=True)
class Finding:
    """One thing that :func:`check_database` has found.

    :ivar severity: ``"error"``: locks fail, or do not protect; ``"warning"``: they do, until
        something goes wrong; ``"info"``: good to know.
    :ivar code: the name of the check, which stays the same from release to release.
    :ivar text: the problem, with its value.
    :ivar cure: the cure; SQL can be pasted as it is.
    """

    severity: Severity
    code: str
    text: str
    cure: str

    @property
    def link(self) -> str:
        """The address of the page's section about this check."""
        return f"{PAGE}#{self.code}"

    def __str__(self) -> str:
        """Return it as lines for people."""
        return f"{self.severity}: {self.text} [{self.code}]\n{self.cure}"


_MYSQL_ACCOUNT = (
    "SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', "
    "QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))"
)
_ACCOUNT: Final[Mapping[str, str]] = {
    "postgresql": "SELECT quote_ident(CURRENT_USER)",
    "mysql": _MYSQL_ACCOUNT,
    "mariadb": _MYSQL_ACCOUNT,
    "mssql": "SELECT QUOTENAME(SUSER_SNAME())",
}

_SETTINGS: Final[Mapping[str, str]] = {
    "postgresql": "SELECT name, setting FROM pg_settings",
    "mysql": "SHOW VARIABLES",
    "mariadb": "SHOW VARIABLES",
}


@dataclass(frozen=True, eq=False)
class Subject:
    """The database and the engine to check.

    :ivar engine: the program's own.
    :ivar connection: one outside the pool, made as the engine makes its connections.
    :ivar headers: the mapped classes whose documents are locked; empty if none were given.
    """

    engine: sa.Engine
    connection: sa.Connection
    strategy: LockStrategy
    headers: Sequence[Mapper[Any]] = ()

    @property
    def version(self) -> tuple[Any, ...]:
        """The version of the server; empty if unknown."""
        return self.connection.dialect.server_version_info or ()

    @property
    def version_text(self) -> str:
        """The version as people write it: ``8.0.36``."""
        return ".".join(map(str, self.version))

    @property
    def account(self) -> str:
        """The account of the connection, as in a GRANT."""
        return str(self.ask(_ACCOUNT[self.strategy.name]))

    def has(self, table: sa.Table) -> bool:
        """Return whether the table is in the database."""
        return self.inspector.has_table(table.name, schema=schema_of(self.connection, table))

    def indexes(self, table: sa.Table) -> Iterator[tuple[Sequence[str | None], bool]]:
        """Yield the columns of each key and index of the table, and whether it is unique."""
        schema, inspector = schema_of(self.connection, table), self.inspector
        yield inspector.get_pk_constraint(table.name, schema)["constrained_columns"], True
        for key in inspector.get_unique_constraints(table.name, schema):
            yield key["column_names"], True
        for index in inspector.get_indexes(table.name, schema):
            yield index["column_names"], bool(index["unique"])

    def ask(self, query: str, **parameters: Any) -> Any:
        """Return the first value of the first row, or None without rows."""
        return self.connection.execute(sa.text(query), parameters).scalar()

    def rows(self, query: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        """Return all rows."""
        return self.connection.execute(sa.text(query), parameters).all()

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings of a PostgreSQL, MySQL or MariaDB server, as this connection has them."""
        rows = self.rows(_SETTINGS[self.strategy.name])
        return {str(row[0]).lower(): str(row[1]) for row in rows}

    @cached_property
    def inspector(self) -> sa.Inspector:
        """SQLAlchemy's reflection of the tables."""
        return sa.inspect(self.connection)

    @cached_property
    def tables(self) -> tuple[sa.Table, ...]:
        """The tables of the documents: of the headers, and of all their parts."""
        found: dict[sa.Table, None] = {}
        for header in self.headers:
            found[own_table(header)] = None
            for part in parts_of(header):
                found[own_table(part.detail)] = None
        return tuple(found)


class Problem(NamedTuple):
    """A fault that a check found: a sentence, and its cure."""

    text: str
    cure: str


def problem_of_table(error: LockNotSupported) -> Problem:
    """Return the problem of a table that the dialect refuses; if the cure is SQL, it is only SQL."""
    text, _, cure = str(error.args[0]).partition(". ")
    cure = cure or "store it in a table with row locks"
    sql = cure.removeprefix("Run ")
    return Problem(text, cure if sql == cure else f"{sql};")


def compatible_problem(found: FoundServer | None, original: str) -> Iterator[Problem]:
    """Yield the problem of a server that is another product than its protocol suggests."""
    if found is None:
        return
    refused = [feature.value for feature in LockFeature if feature in found.refused]
    text = f"the server is {found.product.name}, not {original}: {found.text[:120]}"
    if refused:
        text += f"; LockNotSupported there: {', '.join(refused)}"
    if LockFeature.FOR_UPDATE in found.refused:
        cure = f"keep the documents in {original}, or on a server that gives its locks"
    else:
        cure = "run sa-doclock stress on it before you rely on its other locks"
    yield Problem(text, cure)


Find = Callable[[Subject], Iterator[Problem]]


@dataclass(frozen=True)
class Check:
    """One check.

    :ivar find: yields a problem for each fault; its docstring is the section of the page.
    """

    code: str
    severity: Severity
    find: Find

    @property
    def description(self) -> str:
        """Its paragraph on the page."""
        return inspect.getdoc(self.find) or ""


def check(code: str, severity: Severity) -> Callable[[Find], Check]:
    """Make a Check of a function."""
    return lambda find: Check(code, severity, find)


def checks_in(*modules: ModuleType) -> tuple[Check, ...]:
    """Return the checks of these modules, in the order of their definitions."""
    names = (member for module in modules for member in vars(module).values())
    return tuple(member for member in names if isinstance(member, Check))
