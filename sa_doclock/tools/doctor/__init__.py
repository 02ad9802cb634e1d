"""Checks of a database and its engine: settings that make locks wrong, endless or slow, with the cure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Mapper, configure_mappers, registry

from ...core.documents import declared_roots, lockable_root, parts_of, root_of
from ...dialects import LockFeature, schema_translation, side_connection, strategy_for
from ...dialects.base import LockStrategy
from ...errors import LockNotSupported
from . import (
    checkouts,
    every_database,
    models,
    mssql,
    mysql,
    postgresql,
    postgresql_poolers,
    sqlite,
)
from .check import SEVERITIES, Check, Finding, Severity, Subject, checks_in

CHECKS: Final[Mapping[str, Sequence[Check]]] = {
    "postgresql": checks_in(postgresql, postgresql_poolers),
    "mysql": [each for each in checks_in(mysql) if not each.code.startswith("mariadb-")],
    "mariadb": [each for each in checks_in(mysql) if not each.code.startswith("mysql-")],
    "mssql": checks_in(mssql),
    "sqlite": checks_in(sqlite),
}
"""The checks for one database only, by SQLAlchemy's name of the dialect."""

COMMON_CHECKS: Final[Sequence[Check]] = checks_in(every_database, models, checkouts)
"""The checks of every database."""

_COMPATIBLE: Final = frozenset({postgresql.compatible, mysql.compatible, mssql.compatible})
"""The only checks of a server that locks no rows: the others concern locks that are refused there."""

NOT_CHECKED: Final = "not-checked"


def check_database(engine: Engine, base: Any = None) -> list[Finding]:
    """Return the settings of an engine and its database that are wrong for locks, the worst first.

    The checks read settings and catalogs over a connection of the engine and one of their own.  They lock
    no row and change nothing.

    Example::

        for finding in check_database(engine, Base):
            print(finding)

    :param base: the declarative base or registry of the documents, whose tables, keys and indexes are
        then checked too.
    :returns: an empty list if nothing was found.  A check that fails, for example because a privilege is
        missing, is the finding ``not-checked``.
    :raises LockNotSupported: no lock dialect is registered for this database.
    :raises TypeError: not an Engine; or ``base`` is no declarative base.
    """
    if not isinstance(engine, Engine):
        raise TypeError(f"check_database() needs an Engine, not {engine!r}")
    headers = [] if base is None else headers_of(base)
    strategy = strategy_for(engine)
    with side_connection(engine, schema_translation(engine.get_execution_options())) as connection:
        subject = Subject(engine, connection, strategy, headers)
        checks = checks_for(strategy)
        found = [finding for check in checks for finding in findings_of(check, subject)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def checks_for(strategy: LockStrategy) -> Sequence[Check]:
    """Return the checks of this server."""
    own = CHECKS.get(strategy.name, ())
    if strategy.compatible is not None and LockFeature.FOR_UPDATE in strategy.compatible.refused:
        return [check for check in own if check in _COMPATIBLE]
    return (*COMMON_CHECKS, *own)


def findings_of(check: Check, subject: Subject) -> list[Finding]:
    """Return the findings of one check; its failure is a finding too."""
    try:
        found = [Finding(check.severity, check.code, *problem) for problem in check.find(subject)]
    except Exception as error:
        expected = isinstance(error, (SQLAlchemyError, LockNotSupported))
        if not expected and subject.strategy.compatible is None:
            raise  # only a compatible product may give answers that the original never gives
        reason = error.orig if isinstance(error, DBAPIError) else error
        text = f"the check {check.code} has failed: {' '.join(str(reason).split())[:200]}"
        found = [Finding("info", NOT_CHECKED, text, "check it with an account that may")]
    subject.connection.rollback()
    return found


def headers_of(base: Any) -> list[Mapper[Any]]:
    """Return the headers among the mapped classes: the declared ones, else those with parts.

    :raises TypeError: not a declarative base or registry.
    """
    found = base if isinstance(base, registry) else getattr(base, "registry", None)
    if not isinstance(found, registry):
        raise TypeError(f"base must be a declarative base or a registry, not {base!r}")
    configure_mappers()
    roots: dict[Mapper[Any], None] = {}
    for mapper in sorted(found.mappers, key=lambda mapper: mapper.class_.__name__):
        with suppress(LockNotSupported):  # mapped to a subquery: there is no table to check
            roots[lockable_root(root_of(mapper))] = None
    declared = [root for root in roots if root in declared_roots()]
    return declared or [root for root in roots if parts_of(root)]
