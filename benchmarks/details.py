"""Measure the cost of a document's size, when one of its details is changed.

The header is locked, one detail is read and changed, the header's total is counted on: in
documents of 10 to 10,000 details.  Beside it what locking every detail would cost, and reading
all of them.  ``log`` is what the server writes to its log for one update (PostgreSQL: WAL;
InnoDB: the redo log, in blocks of 512 bytes at least), the median of all.

    python -m benchmarks.details [--databases postgresql,mysql] [--json FILE] [--plot DIR]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.models import Detail, Doc, clean, fill, numbers, totals_are_right
from benchmarks.lab.pairing import compare, milliseconds, ratio
from benchmarks.lab.places import SERVERS, Place
from benchmarks.ways.orm import begin_by_hand
from sa_doclock import LockingSession, LockOptions

SECONDS = 4.0
SIZES = (10, 100, 1000, 10_000)
LOGGED = {True: 9, False: 3}  # number of watched updates: a cheap one, an expensive one
TINY_SIZES = (10, 100)

HEADER_ONLY = "the header is locked, one detail is read"
WHOLE = "the header is locked, all details are read"
EVERY_DETAIL = "every detail is locked, by hand"

Change = Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each((*(("sqlite",) if run.tiny else ()), *SERVERS), measure)


def measure(run: script.Script, place: Place) -> None:
    engine = place.engine()
    ways: dict[str, Change] = {}
    costs: dict[str, list[tuple[int, float, float | None]]] = {}
    sizes = TINY_SIZES if run.tiny else (SIZES[0], SIZES[-1]) if run.quick else SIZES
    fill(engine, documents=1, details=0)
    add_documents(engine, sizes)
    for number, size in enumerate(sizes, 1):
        for name, change in changes(engine, number, size).items():
            ways[f"{name}, {size}"] = change
    cheap = {name: way for name, way in ways.items() if name.startswith(HEADER_ONLY)}
    dear = {name: way for name, way in ways.items() if name not in cheap}
    rounds = {
        **compare(cheap, run.effort(SECONDS)),
        **compare(dear, run.effort(SECONDS)._replace(repeat=1, fewest=3)),
    }
    table = run.table(run.findings.servers[place.name], "an update", "details", "ms", "log, kB")
    for name, way in ways.items():
        what, _, many = name.rpartition(", ")
        took, log = milliseconds(rounds, name), log_of(engine, way, LOGGED[name in cheap])
        costs.setdefault(what, []).append((int(many), took, log))
        table.add_row(what, many, f"{took:.2f}", "" if log is None else f"{log:.2f}")
    run.show(table)
    run.findings.series[f"{place.name}.costs"] = costs
    large, small = (f"{HEADER_ONLY}, {size}" for size in (sizes[-1], sizes[0]))
    run.findings.note(f"{place.name}.large_to_small", ratio(rounds, large, small, "wall"))
    for what, name in ((HEADER_ONLY, "header_only"), (EVERY_DETAIL, "every_detail")):
        log = costs[what][-1][2]
        if log is not None:
            run.findings.note(f"{place.name}.{name}.log", Figure(log))
    run.findings.note(f"{place.name}.wrong_documents", Figure(0 if totals_are_right(engine) else 1))
    clean(engine)


def add_documents(engine: sa.Engine, sizes: Sequence[int]) -> None:
    with engine.begin() as connection:
        connection.execute(sa.delete(Doc))
        for number, size in enumerate(sizes, 1):
            connection.execute(sa.insert(Doc), [{"id": number, "total": 0}])
            rows = [{"id": key(number, n), "doc_id": number, "value": 0} for n in range(size)]
            for start in range(0, size, 1000):
                connection.execute(sa.insert(Detail), rows[start : start + 1000])
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE doclock_bench_detail")


def key(document: int, detail: int) -> int:
    return document * 100_000 + detail


def changes(engine: sa.Engine, document: int, size: int) -> dict[str, Change]:
    locking = sessionmaker(engine, class_=LockingSession)
    plain = sessionmaker(engine)
    middle = key(document, size // 2)
    begin = begin_by_hand(engine)

    def header_only() -> None:
        with locking() as session:
            doc = session.get_entity(Doc, document, LockOptions.ForUpdate)
            _change(doc, session.get(Detail, middle))
            session.save_changes()

    def whole() -> None:
        with locking() as session:
            doc = session.get_document(Doc, document, LockOptions.ForUpdate)
            assert doc is not None
            _change(doc, session.get(Detail, middle))
            session.save_changes()

    def every_detail() -> None:
        with plain() as session:
            begin(session, "BEGIN IMMEDIATE")
            doc = session.get(Doc, document, with_for_update=True, populate_existing=True)
            details = _locked_details(session, document)
            _change(doc, next(detail for detail in details if detail.id == middle))
            session.commit()

    return {HEADER_ONLY: header_only, WHOLE: whole, EVERY_DETAIL: every_detail}


def _locked_details(session: Session, document: int) -> Sequence[Detail]:
    statement = sa.select(Detail).where(Detail.doc_id == document).order_by(Detail.id)
    return session.scalars(statement.with_for_update()).all()


def _change(doc: Any, detail: Any) -> None:
    value = next(numbers)
    doc.total += value - detail.value
    detail.value = value


def log_of(engine: sa.Engine, change: Change, times: int) -> float | None:
    """Return the kilobytes that the server logs for one change; None if it does not report them."""
    if engine.dialect.name not in ("postgresql", "mysql", "mariadb"):
        return None
    sizes = []
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(times):
            before = _log_position(connection)
            change()
            sizes.append(_log_position(connection) - before)
    return statistics.median(sizes) / 1000


def _log_position(connection: sa.Connection) -> int:
    if connection.dialect.name == "postgresql":
        found = connection.exec_driver_sql("SELECT pg_current_wal_insert_lsn() - '0/0'").scalar()
        return int(found or 0)
    row = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'").one()
    return int(row[1])


if __name__ == "__main__":
    main()
