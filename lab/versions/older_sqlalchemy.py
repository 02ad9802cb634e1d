"""A pytest plugin: adds SQLAlchemy features that tests use, and that the first 2.0 releases lack."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest
from sqlalchemy.exc import NoResultFound
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_doclock import LockNotSupported


def _get_one(session: Any, entity: Any, ident: Any, **options: Any) -> Any:
    found = session.get(entity, ident, **options)
    if found is None:
        raise NoResultFound
    return found


async def _get_one_async(session: Any, entity: Any, ident: Any, **options: Any) -> Any:
    return await session.run_sync(_get_one, entity, ident, **options)


def _add(session: Any, get_one: Any) -> None:
    session.get_one, session.reset = get_one, session.close


if not hasattr(Session, "get_one"):  # added, with reset(), in 2.0.22
    _add(Session, _get_one)
    _add(AsyncSession, _get_one_async)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test of a lock if the error itself says that this SQLAlchemy is too old."""
    try:
        return (yield)
    except LockNotSupported as error:
        needs = re.search(r"[\w ]+ needs SQLAlchemy [\d.]+ or newer", error.reason)
        if needs is None:
            raise
        pytest.skip(needs[0])
