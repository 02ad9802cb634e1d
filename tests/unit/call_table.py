"""Counts the calls of Python functions, ours and SQLAlchemy's, of twelve operations on SQLite.

The counts are exact for a version of Python and of SQLAlchemy.  ``python -m tests.unit.call_table``,
in a process of its own, writes them into ``tests/unit/calls``: a row a function, a column an
operation; the first row has the number of statements that were sent.
"""

from __future__ import annotations

import csv
import gc
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import sessionmaker

from benchmarks.lab.models import DeclaredDoc, Doc, fill
from sa_doclock import LockingSession, LockOptions, claim_each, run_transaction

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}-sqlalchemy{sa.__version__}"
TABLE = Path(__file__).with_name("calls") / f"{VERSION}.csv"
SENT = "(sent)"
MANY = range(1, 21)
Make = Callable[[], LockingSession]
Counts = Mapping[str, Counter[str]]


def change(doc: Any) -> None:
    doc.details[0].value += 1
    doc.total = sum(detail.value for detail in doc.details)


def make_and_close(make: Make) -> None:
    make().close()


def update(make: Make, entity: type[Any] = Doc) -> None:
    with make() as session:
        change(session.get_entity(entity, 1, ForUpdate))
        session.save_changes()


def load(make: Make, entity: type[Any] = Doc) -> None:
    with make() as session:
        doc = session.get_one_entity(entity, 1, SharedRead)
        assert len(doc.details)
        session.release_locks()


def update_document(make: Make) -> None:
    with make() as session:
        change(session.get_document(DeclaredDoc, 1, ForUpdate))
        session.save_changes()


def load_document(make: Make) -> None:
    with make() as session:
        assert session.get_document(DeclaredDoc, 1, SharedRead)
        session.release_locks()


def many_by_key(make: Make) -> None:
    with make() as session:
        assert session.get_documents(DeclaredDoc, MANY, ForUpdate)
        session.rollback()


def many_by_select(make: Make) -> None:
    with make() as session:
        assert session.scalars(session.entity_set(Doc, ForUpdate).where(Doc.id < len(MANY))).all()
        session.rollback()


def one_after_another(make: Make) -> None:
    with make() as session:
        kept = [session.get_document(DeclaredDoc, number, ForUpdate) for number in MANY]
        for doc in kept:
            change(doc)
        session.save_changes()


def same_again(make: Make) -> None:
    with make() as session:
        doc = session.get_entity(Doc, 1, ForUpdate)
        for _ in range(10):
            assert session.get_entity(Doc, 1, ForUpdate) is doc
        session.rollback()


def block(make: Make) -> None:
    with make() as session, session.locked(Doc, 1) as doc:
        change(doc)


def claims(make: Make) -> None:
    for claim in claim_each(make, select(Doc).where(Doc.id < 4).order_by(Doc.id)):
        with claim as doc:
            doc.total += 1


def transaction(make: Make) -> None:
    def work(session: LockingSession) -> None:
        session.lock_key("key")
        change(session.get_entity(DeclaredDoc, 1, ForUpdate))

    run_transaction(make, work)


OPERATIONS: dict[str, Callable[[Make], None]] = {
    "make and close": make_and_close,
    "get_entity, update": update,
    "get_entity, load": load,
    "declared, update": lambda make: update(make, DeclaredDoc),
    "declared, load": lambda make: load(make, DeclaredDoc),
    "get_document, update": update_document,
    "get_document, load": load_document,
    "get_documents of 20": many_by_key,
    "entity_set of 20": many_by_select,
    "20 one after another": one_after_another,
    "held again, 10 times": same_again,
    "locked()": block,
    "three claims": claims,
    "run_transaction": transaction,
}


def count() -> Counts:
    """Return the calls of each operation, by function, when it is warm."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/calls.db")
        fill(engine, len(MANY))
        make = sessionmaker(engine, class_=LockingSession)
        counts = {}
        for name, operation in OPERATIONS.items():
            for _ in range(3):
                operation(make)
            counts[name] = _calls_of(lambda: operation(make))  # noqa: B023  # called at once
            counts[name][SENT] = _sent_by(engine, lambda: operation(make))  # noqa: B023
        engine.dispose()
    return counts


def _calls_of(function: Callable[[], None]) -> Counter[str]:
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, what: str, _argument: object) -> None:
        if what == "call":
            calls[_name(frame)] += 1

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_name}"


def _sent_by(engine: sa.Engine, function: Callable[[], None]) -> int:
    sent: list[str] = []

    def note(*_: object) -> None:
        sent.append("")

    names = ("before_cursor_execute", "commit", "rollback")
    for name in names:
        event.listen(engine, name, note)
    function()
    for name in names:
        event.remove(engine, name, note)
    return len(sent)


def text_of(counts: Counts) -> str:
    """Return the table."""
    functions = sorted({name for calls in counts.values() for name in calls})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *counts])
    writer.writerows([name, *(calls[name] for calls in counts.values())] for name in functions)
    return text.getvalue()


def counts_of(text: str) -> Counts:
    """Return the counts of a table."""
    (_, *names), *rows = csv.reader(text.splitlines())
    return {
        name: Counter({row[0]: int(row[column]) for row in rows})
        for column, name in enumerate(names, 1)
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(text_of(count()), end="")
    else:
        TABLE.write_text(text_of(count()), encoding="utf-8")
        print(f"written: {TABLE}")
