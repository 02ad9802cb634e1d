"""Other Session classes among the bases of a LockingSession, and their order."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from ..errors import LockMisuse

S = TypeVar("S", bound=Session)


def refuse_methods_behind(cls: type[Session], ours: type[Session]) -> None:
    """Refuse a base class whose methods call those of Session that ``ours`` overrides.

    Behind ours in the method resolution order, ``super().execute()`` of such a method is
    Session's own: it would take no lock.  In front of ours it is ours.

    :raises LockMisuse: it names the method and the right order of the bases.
    """
    overridden = _overridden_by(ours)
    for base in _in_front_of_session(cls)[cls.__mro__.index(ours) :]:
        for name, member in vars(base).items() if base not in ours.__mro__ else ():
            called = overridden.intersection(_names_by_super(member))
            if called and name not in overridden:
                bases = sorted(cls.__bases__, key=lambda base: issubclass(base, ours))
                raise LockMisuse(
                    f"{cls.__name__}: {base.__name__}.{name}() would call Session.{min(called)}() "
                    f"directly, without the locks and the guard of {ours.__name__}; name "
                    f"{ours.__name__} last: class {cls.__name__}"
                    f"({', '.join(base.__name__ for base in bases)})"
                )


def _overridden_by(ours: type[Session]) -> set[str]:
    return {
        name
        for base in _in_front_of_session(ours)
        for name in vars(base)
        if hasattr(Session, name) and not name.startswith("__")
    }


def _in_front_of_session(cls: type[Session]) -> Sequence[type[Any]]:
    return cls.__mro__[: cls.__mro__.index(Session)]


def _names_by_super(member: Any) -> Iterator[str]:
    """Yield the names in a class member's functions that use ``super()``."""
    if isinstance(member, property):
        members = [member.fget, member.fset, member.fdel]
    else:
        members = [getattr(member, "__func__", member)]  # a static or class method
    for function in members:
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        for part in _codes(code):
            if "super" in part.co_names:
                yield from part.co_names


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    if code is not None:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)


# Threads: the cache is safe; two threads that miss at once create equivalent classes.
@lru_cache(maxsize=64)  # more than a program has; a dropped class is created again
def with_locks(session_class: type[Any], ours: type[S]) -> type[S]:
    """Return the session class if it is one of ours, or else one combined with ours."""
    if issubclass(session_class, ours):
        return session_class
    if issubclass(ours, session_class):
        return ours
    return type(session_class.__name__, (session_class, ours), {})
