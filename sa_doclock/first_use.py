"""An attribute that is created at its first use, because most sessions or transactions do not need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FirstUse(Generic[T]):
    """The attribute that this function creates when it is first read.

    Like functools.cached_property since Python 3.12: before, that takes a lock, at three times the
    cost.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, _owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, _owner: type[Any]) -> T:
        """Return the value, and store it in the object, where Python finds it from then on."""
        made = instance.__dict__[self._name] = self._make(instance)
        return made
