"""What does sa_doclock cost over the same lock written by hand with SQLAlchemy?

One round updates a document (lock the header, read five details, change one, total again,
commit) or loads it (shared lock, read, release), by hand and with sa_doclock in turn, in one
process.  The figure is the ratio of each pair, its median and a 95 % bootstrap interval; an
absolute time would say more of the machine than of the code.

    python benchmarks/overhead.py [--rounds 30] [--repeat 40] [--json FILE]

An SQLite file is always measured; another database where its URL is in
SA_DOCLOCK_TEST_POSTGRESQL_URL, SA_DOCLOCK_TEST_MYSQL_URL or SA_DOCLOCK_TEST_MARIADB_URL.
MySQL and MariaDB engines are made at READ COMMITTED, as docs/mysql.md advises: a lock then
needs no switch of the isolation level, by hand or not.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import sqlalchemy
from sqlalchemy import Engine, ForeignKey, create_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    sessionmaker,
)

from sa_doclock import LockingSession, LockOptions

DETAILS = 5
GOAL = 1.03
SERVERS = ("POSTGRESQL", "MYSQL", "MARIADB")


class Base(DeclarativeBase):
    pass


class Doc(Base):
    __tablename__ = "doclock_overhead_doc"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    details: Mapped[list[Detail]] = relationship(cascade="all, delete-orphan")


class Detail(Base):
    __tablename__ = "doclock_overhead_detail"
    id: Mapped[int] = mapped_column(primary_key=True)
    doc_id: Mapped[int] = mapped_column(ForeignKey(Doc.id), index=True)
    value: Mapped[int]


class Pair(NamedTuple):
    """One operation, written twice."""

    name: str
    by_hand: Callable[[], None]
    with_doclock: Callable[[], None]


class Ratio(NamedTuple):
    """sa_doclock over hand-written."""

    median: float
    low: float
    high: float


def pairs(engine: Engine) -> list[Pair]:
    plain = sessionmaker(engine)
    locking = sessionmaker(engine, class_=LockingSession)
    numbers = iter(range(1, 1 << 62))

    def change(doc: Doc | None) -> None:
        assert doc is not None
        doc.details[0].value = next(numbers) % 1000
        doc.total = sum(detail.value for detail in doc.details)

    def update_by_hand() -> None:
        with plain() as session:
            begin_by_hand(session, "BEGIN IMMEDIATE")
            change(session.get(Doc, 1, with_for_update=True, populate_existing=True))
            session.commit()

    def update() -> None:
        with locking() as session:
            change(session.get_entity(Doc, 1, LockOptions.ForUpdate))
            session.save_changes()

    def load_by_hand() -> None:
        with plain() as session:
            begin_by_hand(session, "BEGIN")
            doc = session.get(Doc, 1, with_for_update={"read": True}, populate_existing=True)
            assert doc is not None
            assert doc.total == sum(detail.value for detail in doc.details)
            session.rollback()

    def load() -> None:
        with locking() as session:
            doc = session.get_entity(Doc, 1, LockOptions.SharedRead)
            assert doc is not None
            assert doc.total == sum(detail.value for detail in doc.details)
            session.release_locks()

    return [Pair("update", update_by_hand, update), Pair("load", load_by_hand, load)]


def begin_by_hand(session: Session, statement: str) -> None:
    if session.get_bind().dialect.name == "sqlite":
        session.connection().exec_driver_sql(statement)


def measure(pair: Pair, rounds: int, repeat: int) -> dict[str, Ratio]:
    spent(pair.by_hand, repeat)
    spent(pair.with_doclock, repeat)
    ratios: dict[str, list[float]] = {"cpu": [], "wall": []}
    for number in range(rounds):
        both = {}  # in alternating order: who comes first finds other caches
        for which in (0, 1) if number % 2 else (1, 0):
            both[which] = spent((pair.by_hand, pair.with_doclock)[which], repeat)
        ratios["cpu"].append(both[1][0] / both[0][0])
        ratios["wall"].append(both[1][1] / both[0][1])
    return {clock: interval(values) for clock, values in ratios.items()}


def spent(operation: Callable[[], None], repeat: int) -> tuple[float, float]:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(repeat):
        operation()
    return time.process_time() - cpu, time.perf_counter() - wall


def interval(values: list[float], samples: int = 2000) -> Ratio:
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(samples))
    return Ratio(
        statistics.median(values), medians[samples * 25 // 1000], medians[samples * 975 // 1000]
    )


@contextmanager
def engines() -> Iterator[list[Engine]]:
    with tempfile.TemporaryDirectory() as folder:
        found = [create_engine(f"sqlite:///{Path(folder) / 'overhead.db'}")]
        urls = (os.environ.get(f"SA_DOCLOCK_TEST_{server}_URL") for server in SERVERS)
        found += [create_engine(url, isolation_level="READ COMMITTED") for url in urls if url]
        try:
            yield found
        finally:
            for engine in found:
                engine.dispose()


def version(engine: Engine) -> str:
    with engine.connect() as connection:
        name = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else engine.dialect.name
        number = connection.dialect.server_version_info or ()
        return f"{name} {'.'.join(str(part) for part in number)}"


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="pairs of measurements")
    parser.add_argument("--repeat", type=int, default=40, help="operations a measurement")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    print(__doc__.splitlines()[0])
    print(
        f"SQLAlchemy {sqlalchemy.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; ratio to hand-written code [95 % interval], goal <= {GOAL}"
    )
    results = []
    with engines() as found:
        for engine in found:
            Base.metadata.drop_all(engine)
            Base.metadata.create_all(engine)
            with Session(engine) as session:
                details = [Detail(value=number) for number in range(DETAILS)]
                session.add(Doc(id=1, total=sum(d.value for d in details), details=details))
                session.commit()
            for pair in pairs(engine):
                ratios = measure(pair, arguments.rounds, arguments.repeat)
                figures = "   ".join(
                    f"{clock} {ratio.median:.3f} [{ratio.low:.3f} .. {ratio.high:.3f}]"
                    for clock, ratio in ratios.items()
                )
                print(f"{version(engine):22} {pair.name:7} {figures}", flush=True)
                results.append(
                    {"database": version(engine), "operation": pair.name}
                    | {clock: ratio._asdict() for clock, ratio in ratios.items()}
                )
            Base.metadata.drop_all(engine)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
