"""``import sa_doclock`` adds no listener to a class of SQLAlchemy; the first use does."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

RECORD = """
import json
import sqlalchemy.ext.asyncio
from sqlalchemy import event

heard = []
listen, listens_for = event.listen, event.listens_for


def record(target, name):
    if isinstance(target, type) and target.__module__.startswith("sqlalchemy."):
        heard.append((target.__name__, name))


def recorded_listen(target, name, *args, **kwargs):
    record(target, name)
    return listen(target, name, *args, **kwargs)


def recorded_listens_for(target, name, *args, **kwargs):
    record(target, name)
    return listens_for(target, name, *args, **kwargs)


event.listen, event.listens_for = recorded_listen, recorded_listens_for
"""


@cache
def listeners_of(code: str) -> list[tuple[str, str]]:
    """Return the class and the event of each listener that the code adds."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{RECORD}\n{code}\nprint(json.dumps(heard))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [(target, name) for target, name in json.loads(ran.stdout)]


# Not Pool yet: sa_doclock.core.pool listens to it at import.
@pytest.mark.parametrize("target", ["Mapper", "Session", "Engine", "Connection", "Dialect"])
@pytest.mark.parametrize("module", ["sa_doclock", "sa_doclock.asyncio"])
def test_the_import_adds_no_listener(module: str, target: str) -> None:
    assert [name for one, name in listeners_of(f"import {module}") if one == target] == []


MODEL = """
from sqlalchemy import Integer, select
from sqlalchemy.orm import DeclarativeBase, mapped_column
from sa_doclock import LockOptions, document, with_lock
class Base(DeclarativeBase):
    pass
class Order(Base):
    __tablename__ = "orders"
    id = mapped_column(Integer, primary_key=True)
"""


@pytest.mark.parametrize(
    ("code", "added"),
    [("document(Order)", 2), ("with_lock(select(Order), LockOptions.ForUpdate)", 1)],
    ids=["document", "with_lock"],
)
def test_the_first_use_listens_to_mappers_once(code: str, added: int) -> None:
    for times in (1, 2):
        heard = listeners_of(MODEL + f"{code}\n" * times)
        assert heard.count(("Mapper", "after_configured")) == added
