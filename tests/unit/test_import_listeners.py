"""``import sa_doclock`` adds no listener to a class of SQLAlchemy; the first use does."""

from __future__ import annotations

import json

import pytest

from tests.support.fresh_process import FreshProcesses

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


def listeners_of(fresh: FreshProcesses, code: str) -> list[tuple[str, str]]:
    """Return the class and the event of each listener that the code adds."""
    ran = fresh.run(f"{RECORD}\n{code}\nprint(json.dumps(heard))")
    assert ran.stderr == ""
    return [(target, name) for target, name in json.loads(ran.stdout)]


# Not Pool yet: sa_doclock.pool listens to it at import.
@pytest.mark.parametrize("module", ["sa_doclock", "sa_doclock.asyncio"])
def test_the_import_adds_no_listener(module: str, fresh: FreshProcesses) -> None:
    targets = {"Mapper", "Session", "Engine", "Connection", "Dialect"}
    assert [heard for heard in listeners_of(fresh, f"import {module}") if heard[0] in targets] == []


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
def test_the_first_use_listens_to_mappers_once(
    code: str, added: int, fresh: FreshProcesses
) -> None:
    for times in (1, 2):
        heard = listeners_of(fresh, MODEL + f"{code}\n" * times)
        assert heard.count(("Mapper", "after_configured")) == added
