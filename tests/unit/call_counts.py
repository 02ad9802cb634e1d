"""Counts the calls of functions of sa_doclock on the way of a lock, warm, on SQLite.

Run as ``python -m tests.unit.call_counts``, in a process of its own: where other tests have declared
documents, every flush is looked at.  It prints the calls as JSON, in their order, each as
``file:function``, indented by its depth.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from tests.support.models import Base, Order, refill
from tests.support.own_code import own_path

INDENT = "  "


def calls_of(function: Callable[[], Any]) -> list[str]:
    """Return the calls of ours that this function makes, without those of a garbage collection."""
    calls: list[str] = []
    depth = 0

    def profile(frame: FrameType, what: str, _argument: object) -> None:
        nonlocal depth
        code = frame.f_code
        place = own_path(code.co_filename)
        if place is None:
            return
        if what == "call":
            calls.append(f"{INDENT * depth}{place}:{code.co_name}")
            depth += 1
        elif what == "return":
            depth -= 1

    gc.disable()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def use(make: Callable[[], LockingSession]) -> dict[str, list[str]]:
    """Lock a document, change it and commit, in a session of its own."""
    sessions: list[LockingSession] = []
    found = {"make": calls_of(lambda: sessions.append(make()))}
    (session,) = sessions
    found["lock"] = calls_of(lambda: session.get_entity(Order, 1, LockOptions.ForUpdate))
    order = session.get_one(Order, 1)
    order.total += len(order.lines)
    found["save"] = calls_of(session.save_changes)
    session.close()
    return found


def main() -> None:
    """Use three sessions, one after the other, and print the calls of the last."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/calls.db")
        with engine.begin() as connection:
            Base.metadata.create_all(connection)
            refill(connection)
        make = sessionmaker(engine, class_=LockingSession)
        print(json.dumps([use(make) for _ in range(3)][-1]))
        engine.dispose()


if __name__ == "__main__":
    main()
