"""Products that answer as PostgreSQL, MySQL or SQL Server, and which of their locks are real.

A row lists the locks that the vendor's documentation denies, with the source of each fact.  No test
runs on these products; only Babelfish was tried, by hand.  A server that is not in the table is
treated as the product that it claims to be, and so is a feature without a fact.  The page's other
facts about them are in tests/docs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import LockNotSupported
from ..options import LockOptions


class LockFeature(Enum):
    """A part of a lock that a server must give; the value is its name in errors and on the page.

    The name of a lock, or of a modifier, is that of its LockOptions.
    """

    FOR_UPDATE = "ForUpdate"
    SHARED_READ = "SharedRead"
    SNAPSHOT_READ = "SnapshotRead"
    NO_WAIT = "NoWait"
    SKIP_LOCKED = "SkipLocked"
    NAMED = "a named lock"
    TIMEOUT = "lock_timeout"


class Fact(NamedTuple):
    """A vendor's statement about one feature.

    :ivar text: the statement in a few words; empty: as in the original.
    :ivar source: the page or issue that says it.
    :ivar before: it applies to versions of the product below this one; None: to all.
    """

    text: str
    source: str
    before: tuple[int, ...] | None = None


class CompatibleServer(NamedTuple):
    """One product: a row of the table.

    :ivar protocol: SQLAlchemy's name of the dialect as which it answers.
    :ivar mark: found in the text of its version; its groups are the product's own version.
    :ivar host: found in the name of the host, if the version does not show it.
    :ivar refused: the features that are no lock there, or another one than requested.
    :ivar sets_next_level: ``SET TRANSACTION ISOLATION LEVEL`` applies to the next transaction.
    """

    name: str
    protocol: str
    mark: str
    refused: Mapping[LockFeature, Fact] = MappingProxyType({})
    host: str | None = None
    sets_next_level: bool = True


class FoundServer(NamedTuple):
    """A product of the table that answered.

    :ivar text: the text that names the version, on one line.
    :ivar refused: the features that are not used there, and why.  Without FOR_UPDATE no transaction
        waits for a row, so there are no such waits to show.
    """

    product: CompatibleServer
    text: str
    refused: Mapping[LockFeature, str]


def check_features(
    found: FoundServer, lock: LockOptions, seconds: float | None = None, *, named: bool = False
) -> None:
    """:raises LockNotSupported: the lock, a modifier of it or its limit is not real there.

    :param seconds: the ``lock_timeout``; None and 0 need nothing of the server.
    :param named: it is a named lock, which locks no row.
    """
    for feature, reason in found.refused.items():
        if feature is LockFeature.TIMEOUT:
            needed = bool(seconds)
        elif named or feature is LockFeature.NAMED:
            needed = named and feature is LockFeature.NAMED
        else:
            needed = LockOptions[feature.value] in lock
        if needed:
            raise LockNotSupported(reason)


def _refused(product: CompatibleServer, version: tuple[int, ...]) -> dict[LockFeature, str]:
    name = f"{product.name} {'.'.join(map(str, version))}".rstrip()
    return {
        feature: f"{name} does not support {feature.value}: {fact.text}. See {fact.source}"
        for feature in LockFeature
        if (fact := product.refused.get(feature)) is not None
        and not (fact.before and version and version >= fact.before)
    }


def find_server(protocol: str, version: str, host: str | None = None) -> FoundServer | None:
    """Return the product of the table that answers with this version, or None.

    :param protocol: SQLAlchemy's name of the dialect.
    :param version: the text of the server's version.
    """
    text = " ".join(version.split())
    for product in COMPATIBLE_SERVERS:
        if product.protocol != protocol:
            continue
        found = re.search(product.mark, version, re.IGNORECASE)
        if found:
            known = tuple(int(number) for number in found.groups() if number)
            return FoundServer(product, text, _refused(product, known))
        if product.host and host and re.search(product.host, host, re.IGNORECASE):
            return FoundServer(product, text, _refused(product, ()))
    return None


_COCKROACH: Final = "https://www.cockroachlabs.com/docs/v26.3/"
_DSQL: Final = "https://docs.aws.amazon.com/aurora-dsql/latest/userguide/"
_REDSHIFT: Final = "https://docs.aws.amazon.com/redshift/latest/dg/"
_TIDB_ISSUES: Final = "https://github.com/pingcap/tidb/"
_CHECKED_AT_COMMIT: Final = Fact(
    "FOR UPDATE does not make others wait. If two transactions lock or change the row, one of them fails "
    "at COMMIT",
    f"{_DSQL}working-with-concurrency-control.html",
)
_LOCK_FREE: Final = Fact(
    "it has no locks. If two transactions change a row, one of them fails at COMMIT",
    f"{_DSQL}working-with-concurrency-control.html",
)
_TABLE_LOCKS: Final = Fact(
    "it locks whole tables, at serializable isolation", f"{_REDSHIFT}c_serial_isolation.html"
)
_HINTS_IGNORED: Final = Fact(
    "it ignores the table hints of T-SQL, so two transactions would get the lock. Connect to its "
    "port of PostgreSQL, with the dialect postgresql",
    "https://docs.aws.amazon.com/AmazonRDS/latest/AuroraUserGuide/babelfish-tsql-hints.html",
)
_NO_TRANSACTION_ID: Final = Fact(
    "it has no CURRENT_TRANSACTION_ID(), by which a session recognizes its transaction. Connect to its "
    "port of PostgreSQL, with the dialect postgresql",
    "https://github.com/babelfish-for-postgresql/babelfish_extensions/blob/"
    "72af3559639c78994b89c72346656678d64d80eb/contrib/babelfishpg_tsql/sql/sys_functions.sql",
)
_SYNAPSE: Final = Fact(
    "a SELECT cannot lock rows in a dedicated SQL pool. Keep documents in Azure SQL Database or SQL "
    "Server",
    "https://learn.microsoft.com/azure/synapse-analytics/sql-data-warehouse/"
    "sql-data-warehouse-develop-transactions",
)
_FABRIC: Final = Fact(
    "it locks whole tables, and if two transactions change one, the second fails at COMMIT. "
    "Keep documents in SQL database in Fabric, Azure SQL Database or SQL Server",
    "https://learn.microsoft.com/fabric/data-warehouse/transactions",
)
_OF_ROWS: Final = (
    *(LockFeature.FOR_UPDATE, LockFeature.SHARED_READ),
    *(LockFeature.NO_WAIT, LockFeature.SKIP_LOCKED),
)

COMPATIBLE_SERVERS: Final = (
    CompatibleServer(
        "CockroachDB",
        "postgresql",
        r"CockroachDB(?: \S+)* v(\d+)\.(\d+)(?:\.(\d+))?|CockroachDB",
        refused={
            LockFeature.SHARED_READ: Fact(
                "FOR SHARE locks nothing at SERIALIZABLE by default, and a cluster runs READ COMMITTED as "
                "SERIALIZABLE unless it is enabled",
                f"{_COCKROACH}select-for-update#for-share-usage",
            ),
            LockFeature.NAMED: Fact(
                "it does not support advisory locks, and some of their functions do nothing",
                f"{_COCKROACH}postgresql-compatibility",
            ),
        },
    ),
    CompatibleServer(
        "YugabyteDB",
        "postgresql",
        r"-YB-(\d+)\.(\d+)(?:\.(\d+))?|Yugabyte",
        refused={
            LockFeature.TIMEOUT: Fact(
                "its lock_timeout limits advisory locks, but not the wait for a row",
                "https://github.com/yugabyte/yugabyte-db/releases/tag/2.25.2.0-b321",
            ),
            LockFeature.NAMED: Fact(
                "it has advisory locks since 2025.1",
                "https://dev.to/yugabyte/advisorycustomapplication-lock-with-yugabytedb-jao",
                before=(2025, 1),
            ),
        },
    ),
    CompatibleServer(
        "Aurora DSQL",
        "postgresql",
        r"Aurora DSQL",
        refused={
            **dict.fromkeys(_OF_ROWS, _CHECKED_AT_COMMIT),
            LockFeature.SHARED_READ: _LOCK_FREE,
            LockFeature.NAMED: _LOCK_FREE,
            LockFeature.TIMEOUT: _LOCK_FREE,
        },
        host=r"\.dsql\.[\w-]+\.on\.aws$",
    ),
    CompatibleServer(
        "Amazon Redshift",
        "postgresql",
        r"Redshift(?: (\d+)\.(\d+)\.(\d+))?",
        refused={
            **dict.fromkeys(_OF_ROWS, _TABLE_LOCKS),
            LockFeature.SNAPSHOT_READ: Fact(
                "it ignores the isolation level of a transaction", f"{_REDSHIFT}r_BEGIN.html"
            ),
            LockFeature.NAMED: Fact(
                "it began as PostgreSQL 8.0, and advisory locks came with 8.2",
                "https://www.postgresql.org/docs/release/8.2.0/",
            ),
            LockFeature.TIMEOUT: Fact(
                "it began as PostgreSQL 8.0, and the setting lock_timeout came with 9.3",
                "https://www.postgresql.org/docs/release/9.3.0/",
            ),
        },
    ),
    CompatibleServer("Greenplum", "postgresql", r"Greenplum"),
    CompatibleServer("Materialize", "postgresql", r"Materialize"),
    CompatibleServer("QuestDB", "postgresql", r"QuestDB"),
    CompatibleServer(
        "TiDB in optimistic mode",
        "mysql",
        r"TiDB(?:-v(\d+)\.(\d+)(?:\.(\d+))?)?.* optimistic",
        refused=dict.fromkeys(
            LockFeature,
            Fact(
                "FOR UPDATE does not wait, and one of two transactions fails at COMMIT. Run "
                "SET GLOBAL tidb_txn_mode = 'pessimistic'",
                "https://docs.pingcap.com/tidb/stable/optimistic-transaction",
            ),
        ),
    ),
    CompatibleServer(
        "TiDB",
        "mysql",
        r"TiDB(?:-v(\d+)\.(\d+)(?:\.(\d+))?)?",
        refused={
            LockFeature.SHARED_READ: Fact(
                "LOCK IN SHARE MODE and FOR SHARE are errors, or do nothing with "
                "tidb_enable_noop_functions",
                "https://docs.pingcap.com/tidb/stable/pessimistic-transaction#differences-from-mysql-innodb",
            ),
            LockFeature.SKIP_LOCKED: Fact(
                "FOR UPDATE SKIP LOCKED skips nothing and locks nothing",
                f"{_TIDB_ISSUES}issues/69720",
            ),
            LockFeature.SNAPSHOT_READ: Fact(
                "START TRANSACTION READ ONLY is an error, or does nothing with "
                "tidb_enable_noop_functions",
                f"{_TIDB_ISSUES}pull/23818",
            ),
            LockFeature.TIMEOUT: Fact(
                "MAX_EXECUTION_TIME does not end a SELECT FOR UPDATE that waits. Set "
                "innodb_lock_wait_timeout in the server",
                f"{_TIDB_ISSUES}issues/62960",
            ),
        },
    ),
    CompatibleServer("Vitess", "mysql", r"Vitess|PlanetScale", sets_next_level=False),
    CompatibleServer(
        "SingleStore",
        "mysql",
        r"SingleStore|MemSQL",
        refused={
            LockFeature.SNAPSHOT_READ: Fact(
                "its only isolation level is READ COMMITTED, so two reads of a transaction can differ",
                "https://docs.singlestore.com/db/v9.1/introduction/faqs/durability/",
            )
        },
    ),
    CompatibleServer(
        "OceanBase", "mysql", r"OceanBase(?:[ _-](?:CE[ -])?v?(\d+)\.(\d+)(?:\.(\d+))?)?"
    ),
    CompatibleServer("Aurora MySQL", "mysql", r"aurora"),
    CompatibleServer("ProxySQL", "mysql", r"ProxySQL"),
    CompatibleServer("Doris", "mysql", r"Doris"),
    CompatibleServer(
        "Babelfish",
        "mssql",
        r"Babelfish 1|Babelfish for PostgreSQL",
        refused={
            **dict.fromkeys((*_OF_ROWS, LockFeature.TIMEOUT), _HINTS_IGNORED),
            **dict.fromkeys((LockFeature.SNAPSHOT_READ, LockFeature.NAMED), _NO_TRANSACTION_ID),
        },
    ),
    CompatibleServer(
        "Azure Synapse Analytics (dedicated SQL pool)",
        "mssql",
        r"EngineEdition 6;",
        refused=dict.fromkeys(LockFeature, _SYNAPSE),
    ),
    CompatibleServer(
        "Microsoft Fabric Warehouse or Azure Synapse serverless",
        "mssql",
        r"EngineEdition 11;",
        refused=dict.fromkeys(LockFeature, _FABRIC),
    ),
)
"""The table.  The first product whose mark or host is found answers."""
