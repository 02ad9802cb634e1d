"""An attribute that is made at its first use, because most sessions or transactions do not need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FirstUse(Generic[T]):
    """The attribute that this function makes, when an object is asked for it first.

    As functools.cached_property since Python 3.12: before, that takes a lock, which costs three
    times as much as all the rest.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, _owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, _owner: type[Any]) -> T:
        """Return it, and keep it in the object, where Python finds it from then on."""
        made = instance.__dict__[self._name] = self._make(instance)
        return made
