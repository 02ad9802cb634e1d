"""A process that locks: ``python -m tests.integration.locking.stopped URL SECONDS [WAY]``.

It reports when it holds the lock, waits for a line on its standard input, commits, and reports the
outcome.  The URL may name an asynchronous driver.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sa_doclock import AsyncLockingSession, LockingSession, LockLost, LockOptions
from tests.support.models import Line, Order


def lock(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 1000


def lock_and_flush_many(session: LockingSession) -> None:
    """Send an UPDATE of two rows, which drivers may send differently from one of a single row."""
    lock(session)
    session.execute(sa.update(Line), [{"id": 1, "value": 1}, {"id": 2, "value": 2}])


#: The action before the process is stopped, by name.
WAYS: Mapping[str, Callable[[LockingSession], None]] = {
    "lock": lock,
    "lock and flush many": lock_and_flush_many,
}


def hold(session: Session, way: str) -> str:
    """Take the lock, wait, and commit; return the outcome."""
    assert isinstance(session, LockingSession)
    WAYS[way](session)
    print("locked", flush=True)
    sys.stdin.readline()
    try:
        session.commit()
    except LockLost:
        return "lost"
    return "committed"


async def hold_async(url: sa.URL, seconds: float, way: str) -> str:
    engine = create_async_engine(url)
    try:
        async with AsyncLockingSession(engine, hold_limit=seconds) as session:
            return await session.run_sync(hold, way)
    finally:
        await engine.dispose()


def main(reported: str, seconds: float, way: str = "lock") -> None:
    url = sa.make_url(reported)
    if url.get_dialect().is_async:
        result = asyncio.run(hold_async(url, seconds, way))
    else:
        engine = sa.create_engine(url)
        with LockingSession(engine, hold_limit=seconds) as session:
            result = hold(session, way)
        engine.dispose()
    print(result, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
