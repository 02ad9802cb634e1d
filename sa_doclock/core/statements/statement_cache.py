"""A cache of facts about a statement, for all statements with the same SQL."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from sqlalchemy.util import LRUCache

from ...sqlalchemy_internals import cache_key_of
from ..documents import clear_with_mappers, listen_to_mappers

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_SIZE: Final = 500
"""The default size of an engine's cache."""


def statement_cache(function: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Cache the results of a function of statements until mappers or documents change.

    The key is SQLAlchemy's own cache key: a program that builds a statement anew for each call
    gets the same result.  So a result must not refer to the statement, such as to its
    ``aliased()``; and None would be computed again each time.
    """
    # Threads: SQLAlchemy's cache is safe.  If two threads miss at once, the later result stays,
    # which is equal.  A result found while the cache was emptied is computed again, once.
    results: LRUCache[Any, T] = LRUCache(_SIZE)

    def clear() -> None:
        nonlocal results
        results = LRUCache(_SIZE)

    def cached(statement: S, *arguments: Any) -> T:
        sql = cache_key_of(statement)
        if sql is None:
            return function(statement, *arguments)  # type: ignore[call-arg]
        key = (sql, *arguments)
        try:
            found = results.get(key)
        except TypeError:  # with query_cache_size=0, if a type of the program has a list in its key
            return function(statement, *arguments)  # type: ignore[call-arg]
        if found is not None:
            return found
        listen_to_mappers()
        for _ in range(2):
            now = results
            found = now[key] = function(statement, *arguments)  # type: ignore[call-arg]
            # Otherwise the cache was emptied, perhaps by the function, which may configure mappers.
            if now is results:
                break
        return cast("T", found)  # not cached if the cache was emptied again

    clear_with_mappers(clear)
    return cast("Callable[Concatenate[S, P], T]", update_wrapper(cached, function))
