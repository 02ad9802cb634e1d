"""The session inside of an AsyncLockingSession: always a LockingSession."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from ..session import LockingSession, with_locks


def locking_class_of(cls: type[AsyncSession]) -> type[Session]:
    """Return the ``sync_session_class`` of this class and of all of its bases, made one."""
    if "sync_session_class" in vars(cls):  # the class says it itself
        return _locking_class(cls.sync_session_class)
    said = (vars(base).get("sync_session_class") for base in cls.__mro__)
    bases: list[type[Session]] = []
    for inside in filter(None, said):
        if not any(issubclass(one, inside) for one in bases):
            bases.append(inside)
    # Ours last, so that the methods of the others come to it.
    bases.sort(key=lambda one: issubclass(one, LockingSession))
    return bases[0] if len(bases) == 1 else type("Session", tuple(bases), {})


def locking_factory(inside: Any) -> Any:
    """Return what makes the session inside: a class, a sessionmaker, or any other function."""
    if isinstance(inside, type) and issubclass(inside, Session):
        return _locking_class(inside)
    if isinstance(inside, sessionmaker) and not issubclass(inside.class_, LockingSession):
        # Advanced Alchemy has its listeners on such a one: its class is a base of ours, so they
        # hear our sessions.
        return partial(_make, inside, _locking_class(inside.class_))
    return inside


def _make(maker: sessionmaker[Session], cls: Callable[..., Session], **kw: Any) -> Session:
    """Make a session as the maker does, of another class."""
    info = {**(maker.kw.get("info") or {}), **(kw.get("info") or {})}
    return cls(**{**maker.kw, **kw, "info": info})


def _locking_class(inside: Any) -> type[Session]:
    return with_locks(inside, LockingSession)
