"""The docstrings of the API reference: each public function has an example that runs; times have a unit."""

from __future__ import annotations

import ast
import asyncio
import inspect
import operator
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sa_doclock
import sa_doclock.opentelemetry
import sa_doclock.testing
from tests.docs.reference import public_names

#: The models, the rows and the factories that the examples use.
PREPARED = """
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from sqlalchemy import ForeignKey, MetaData, create_engine, select, update
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

import sa_doclock.opentelemetry
from sa_doclock import *
from sa_doclock.testing import *


class Base(DeclarativeBase):
    pass


@document(parts=("lines",), checkout=True)
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    lines: Mapped[list["Line"]] = relationship()


class Line(Base):
    __tablename__ = "order_lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    value: Mapped[int]


@document(checkout=True)
class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str]


class Counter(Base):
    __tablename__ = "counters"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int]


metadata, gate = MetaData(), DocumentGate()
engine = create_engine("sqlite:///shop.db")
async_engine = create_async_engine("sqlite+aiosqlite:///shop.db")
options = {"checkouts": checkout_table(Base.metadata)}
Session = sessionmaker(engine, class_=LockingSession, **options)
AsyncSession = async_sessionmaker(async_engine, class_=AsyncLockingSession, **options)
Base.metadata.create_all(engine)
with Session.begin() as session:
    session.add_all([Order(id=42, total=1), Order(id=43, total=200), Job(id=1, state="new")])
session = Session()
"""

#: These examples need a server, or a finding of an audit: the test only compiles them.
NOT_RUN = {
    "async_lock_waits",
    "lock_waits",
    "skip_redundant_rollback",
    "testing.explore_finding",
}


def functions() -> Iterator[str]:
    """Yield the public functions, and the methods of LockingSession and DocumentGate."""
    for name in (*public_names(), "DocumentGate.run", "DocumentGate.async_run"):
        if not isinstance(operator.attrgetter(name)(sa_doclock), type):
            yield name


def example_of(name: str) -> str:
    docstring = inspect.getdoc(operator.attrgetter(name)(sa_doclock)) or ""
    found = re.search(r"::\n\n((?:    .*\n|\n)+)", f"{docstring}\n")
    return textwrap.dedent(found[1]) if found else ""


def test_each_public_function_has_an_example() -> None:
    """The example of the returning function covers the methods of a returned object, such as a Lease."""
    assert [name for name in functions() if not example_of(name)] == []


@pytest.mark.parametrize("name", [*functions()])
def test_its_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(example_of(name), name, "exec", flags, dont_inherit=True)
    if name in NOT_RUN:
        return
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(PREPARED, "prepared", "exec", dont_inherit=True), names)
    try:
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(_awaited(code, names))
        else:
            exec(code, names)
    finally:
        sa_doclock.opentelemetry.uninstrument()
        names["session"].close()
        names["engine"].dispose()
        names[
            "Base"
        ].registry.dispose()  # otherwise Python may collect a class before one that refers to it


def test_each_time_has_its_unit() -> None:
    """A parameter that the docstring omits is documented at the function that it names."""
    without = []
    for name in (*public_names(), "DocumentGate.run"):
        found = operator.attrgetter(name)(sa_doclock)
        if isinstance(found, property) or (
            isinstance(found, type) and issubclass(found, Exception)
        ):
            continue
        docstring = inspect.getdoc(found) or ""
        for parameter in inspect.signature(found).parameters.values():
            field = rf":(?:param|ivar) {parameter.name}:((?:.|\n)*?)(?=\n:|\Z)"
            described = re.search(field, docstring)
            is_time = re.search(r"float|timedelta|LockTimeout", str(parameter.annotation))
            if is_time and described and not re.search("second|timedelta|as for", described[1]):
                without.append(f"{name}({parameter.name})")
    assert without == []


async def _awaited(code: Any, names: dict[str, Any]) -> None:
    try:
        await eval(code, names)
    finally:
        await names["async_engine"].dispose()
