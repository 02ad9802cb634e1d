"""The parts of docs/compatible-servers.md that programs do not need: vendors' documentation of the locks sent, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sa_doclock.dialects import COMPATIBLE_SERVERS, LockFeature
from sa_doclock.dialects.compatible_servers import CompatibleServer, Fact

_COCKROACH: Final = "https://www.cockroachlabs.com/docs/v26.3/"
_YUGABYTE: Final = "https://docs.yugabyte.com/stable/architecture/transactions/concurrency-control/"
_TIDB: Final = "https://docs.pingcap.com/tidb/stable/pessimistic-transaction"
_VITESS: Final = "https://vitess.io/docs/22.0/reference/"
_OCEANBASE: Final = "https://en.oceanbase.com/docs/common-oceanbase-database-10000000001974038"

#: Products by dialect, whose version string does not distinguish them from the original.
UNTOLD: Final = {"postgresql": ("Aurora PostgreSQL", "AlloyDB", "Neon")}

#: The products that tests ran on; tests/sql/evidence.md names the tests.
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


# --------------------------------------------------------------------------------------------------
# Builds the table of docs/compatible-servers.md from the table of dialects.

_ORIGINALS = {"postgresql": "PostgreSQL", "mysql": "MySQL", "mssql": "SQL Server"}


def sections() -> Iterator[str]:
    """Yield a section for each product with facts, and one line for the others."""
    without: list[CompatibleServer] = []
    for product in COMPATIBLE_SERVERS:
        if product.refused or product.name in DOCUMENTED or product.name in NOTES:
            yield from _section(product)
        else:
            without.append(product)
    yield "## Others"
    yield ""
    yield "Without known facts, sa_doclock treats these products as the original, by their protocol:"
    yield ""
    for protocol, original in _ORIGINALS.items():
        told = [product.name for product in without if product.protocol == protocol]
        untold = [f"{name} (not known by its version)" for name in UNTOLD.get(protocol, ())]
        if told or untold:
            yield f"- {original}: {', '.join((*told, *untold))}."
    yield ""


def _section(product: CompatibleServer) -> Iterator[str]:
    yield f"## {product.name}"
    yield ""
    yield f"Answers as {_ORIGINALS[product.protocol]}."
    yield ""
    yield "| | | | by |"
    yield "|---|---|---|---|"
    known = {*product.refused, *DOCUMENTED.get(product.name, {})}
    for feature in LockFeature:
        if feature in known:
            yield _row(feature, product)
    if others := ", ".join(feature.value for feature in LockFeature if feature not in known):
        yield f"| {others} | not run | | {', '.join(_evidence(product, None))} |"
    yield ""
    notes = NOTES.get(product.name, ())
    for note in notes:
        yield f"- {note[0].upper()}{note[1:]}."
    if notes:
        yield ""


def _row(feature: LockFeature, product: CompatibleServer) -> str:
    refused, sent = product.refused.get(feature), DOCUMENTED.get(product.name, {}).get(feature)
    evidence = ", ".join(_evidence(product, refused or sent))
    if refused is not None:
        below = f" below {'.'.join(map(str, refused.before))}" if refused.before else ""
        reason = f"{refused.text} [(source)]({refused.source})"
        return f"| {feature.value} | LockNotSupported{below} | {reason} | {evidence} |"
    assert sent is not None
    says = f"documented: {sent.text}" if sent.text else "documented"
    return f"| {feature.value} | not run | {says} [(source)]({sent.source}) | {evidence} |"


def _evidence(product: CompatibleServer, fact: Fact | None) -> Iterator[str]:
    """Yield the letters for the evidence of a row; the page explains them."""
    yield "D"
    if fact is not None:
        if "/blob/" in fact.source:
            yield "C"
        else:
            yield "I" if fact.source.startswith("https://github.com/") else "M"
    if product.name in RUN:
        yield "R"
