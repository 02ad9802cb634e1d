"""The facts of docs/compatible-servers.md that no program needs: what vendors document of locks that are sent, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sa_doclock.dialects import LockFeature
from sa_doclock.dialects.compatible_servers import Fact

_COCKROACH: Final = "https://www.cockroachlabs.com/docs/v26.3/"
_YUGABYTE: Final = "https://docs.yugabyte.com/stable/architecture/transactions/concurrency-control/"
_TIDB: Final = "https://docs.pingcap.com/tidb/stable/pessimistic-transaction"
_VITESS: Final = "https://vitess.io/docs/22.0/reference/"
_OCEANBASE: Final = "https://en.oceanbase.com/docs/common-oceanbase-database-10000000001974038"

#: Products, by the dialect, whose version does not tell them from the original.
UNTOLD: Final = {"postgresql": ("Aurora PostgreSQL", "AlloyDB", "Neon")}

#: The products that tests have run on; tests/sql/evidence.md says which tests.
RUN: Final = frozenset({"Babelfish"})

DOCUMENTED: Final[Mapping[str, Mapping[LockFeature, Fact]]] = {
    "CockroachDB": {
        LockFeature.FOR_UPDATE: Fact(
            "at READ COMMITTED; at SERIALIZABLE a best effort, and a conflict is 40001",
            f"{_COCKROACH}select-for-update",
        ),
        LockFeature.NO_WAIT: Fact("", f"{_COCKROACH}select-for-update#wait-policies"),
        LockFeature.SKIP_LOCKED: Fact("", f"{_COCKROACH}select-for-update#wait-policies"),
        LockFeature.TIMEOUT: Fact(
            "", "https://www.cockroachlabs.com/docs/v25.2/session-variables#lock-timeout"
        ),
    },
    "YugabyteDB": {
        LockFeature.FOR_UPDATE: Fact("", f"{_YUGABYTE}#wait-on-conflict"),
        LockFeature.SHARED_READ: Fact("", f"{_YUGABYTE}#wait-on-conflict"),
        LockFeature.NO_WAIT: Fact(
            "at READ COMMITTED", "https://github.com/yugabyte/yugabyte-db/issues/11760"
        ),
        LockFeature.SKIP_LOCKED: Fact("", f"{_YUGABYTE}#row-level-explicit-locking-clauses"),
    },
    "TiDB": {
        LockFeature.FOR_UPDATE: Fact("in pessimistic transactions, the default", _TIDB),
        LockFeature.NO_WAIT: Fact("", f"{_TIDB}#behaviors"),
        LockFeature.NAMED: Fact(
            "a wait is at least 1 s, also for NoWait, and deadlocks are not detected",
            "https://docs.pingcap.com/tidb/stable/locking-functions",
        ),
    },
    "Vitess": {
        LockFeature.NAMED: Fact(
            "by a connection that is reserved for the session",
            f"{_VITESS}query-serving/reserved-conn/#get_lock-and-reserved-connections",
        ),
    },
    "OceanBase": {
        LockFeature.FOR_UPDATE: Fact("", _OCEANBASE),
        LockFeature.NO_WAIT: Fact("where it says to be MySQL 8", _OCEANBASE),
        LockFeature.SKIP_LOCKED: Fact("where it says to be MySQL 8", _OCEANBASE),
    },
}

NOTES: Final[Mapping[str, Sequence[str]]] = {
    "CockroachDB": (
        (
            "The table shows the vendor's documentation. Here every lock raises LockNotSupported: SQLAlchemy's "
            "dialect postgresql does not connect to CockroachDB, and sa_doclock has no locks for the dialect "
            "cockroachdb"
        ),
    ),
    "YugabyteDB": (
        (
            "without yb_enable_read_committed_isolation a transaction at READ COMMITTED runs at "
            "REPEATABLE READ, where a lock can end in 40001, a SnapshotConflict: "
            "https://github.com/yugabyte/yugabyte-db/issues/12004"
        ),
        "from 2025.1 on, a server flag enables advisory locks",
    ),
    "TiDB": (
        (
            "a lock that is held in memory can be lost when a node of TiKV fails; the transaction "
            f"then fails at its COMMIT: {_TIDB}#in-memory-pessimistic-lock"
        ),
    ),
    "Vitess": (
        (
            "sa_doclock sets the isolation level for the session, because Vitess cannot set it for the "
            f"next transaction: {_VITESS}compatibility/mysql-compatibility/#set-transaction"
        ),
    ),
    "SingleStore": (
        (
            "by default it ignores unsupported parts of a statement, with a warning; set "
            "warn_level to errors: "
            "https://docs.singlestore.com/cloud/developer-resources/unsupported-mysql-features/"
        ),
    ),
}
