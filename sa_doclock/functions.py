"""The check of every function that a program passes: that calling it runs it, and that it fits.

The signature shows most of it before anything is sent.  A lambda that returns a coroutine or a
generator looks like any other function, so the result of a function is checked too.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial
from types import FunctionType
from typing import Any, Final

_NO_ARGUMENT = object()
_GENERATORS: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def check_function(
    name: str, function: object, of: str = "", *, arguments: int | None = None, instead: str = ""
) -> None:
    """Check a function before it is called, as far as its signature allows.

    :param name: of the argument, for errors.
    :param of: its arguments, for errors.
    :param arguments: their number, or None.
    :param instead: the replacement for a coroutine function; "": it may be one.
    :raises TypeError: a call would raise it, or would run nothing.
    """
    if arguments is not None and _is_plain(function, arguments, coroutine=not instead):
        return
    if not callable(function):
        raise TypeError(f"{name} must be a function{of and ' '}{of}, not {function!r}")
    if instead and is_coroutine_function(function):
        raise TypeError(
            f"{name} is a coroutine function, which is not awaited here; use {instead}: {function!r}"
        )
    called = _called(function)
    # types.coroutine() turns a generator into an awaitable.
    awaited = getattr(getattr(called, "__code__", None), "co_flags", 0)
    if inspect.isasyncgenfunction(called) or (
        inspect.isgeneratorfunction(called) and not awaited & inspect.CO_ITERABLE_COROUTINE
    ):
        raise TypeError(
            f"{name} is a generator function, and calling it runs nothing; "
            f"remove its yield: {function!r}"
        )
    if arguments is not None:
        _check_arguments(name, function, of, arguments)


def _is_plain(function: object, arguments: int, *, coroutine: bool) -> bool:
    """Return whether the code of the function alone shows that it fits, as for most functions.

    An attribute may mark it as a coroutine function, or replace its signature.
    """
    if type(function) is not FunctionType or function.__dict__:
        return False
    code = function.__code__
    refused = _GENERATORS if coroutine else _GENERATORS | inspect.CO_COROUTINE
    counted = code.co_argcount == arguments and code.co_kwonlyargcount == 0
    return counted and not code.co_flags & refused


def is_coroutine_function(function: object) -> bool:
    """Return whether a call returns a coroutine, as far as the signature shows."""
    return inspect.iscoroutinefunction(_called(function))


def _called(function: Any) -> Any:
    """Return the function whose body a call runs: for a method, a partial, an object with __call__."""
    while True:
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isfunction(inspect.getattr_static(type(function), "__call__", None)):
            if inspect.iscoroutinefunction(function):  # marked as one
                return function
            function = type(function).__call__
        else:
            return function


def _check_arguments(name: str, function: Callable[..., Any], of: str, number: int) -> None:
    try:
        # The wrapper's own signature: it may add arguments.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # a C function may have no signature
        return
    try:
        signature.bind(*[_NO_ARGUMENT] * number)
    except TypeError as error:
        raise TypeError(
            f"{name} must be a function {of}, and {function!r} takes {signature}: {error}"
        ) from None


def check_result(name: str, function: object, result: object, *, awaited: bool = False) -> None:
    """Check the result of a function.

    :param awaited: it is about to be awaited.
    :raises TypeError: the function has not run, or would not.
    """
    if awaited and inspect.isawaitable(result):
        return
    if isinstance(result, (Coroutine, Generator)):
        result.close()  # avoids "never awaited"
    elif awaited:
        raise TypeError(f"{name} must be a coroutine function, not {function!r}")
    elif not isinstance(result, AsyncGenerator):
        return
    kind = "coroutine" if isinstance(result, Coroutine) else "generator"
    raise TypeError(
        f"{name} returned a {kind}, which runs nothing until it is "
        f"{'awaited' if kind == 'coroutine' else 'iterated'}: {function!r}"
    )


def call_checked(name: str, awaited: bool, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, and return its checked result."""
    result = function(*arguments)
    check_result(name, function, result, awaited=awaited)
    return result
