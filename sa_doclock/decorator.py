"""@transactional: each call of a function is a transaction of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from .functions import check_function, is_coroutine_function
from .retry import Policy, RetryOn, checked_policy, run_checked

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")

_TAKES_FIRST = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def transactional(
    session_factory: Callable[[], S],
    *,
    attempts: int = 5,
    backoff: float = 0.05,
    max_backoff: float = 2.0,
    retry_not_available: bool = False,
    retry_on: RetryOn | None = None,
    commit_outcome: bool = False,
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[P, T]]:
    """Decorate a function so that each call is a separate transaction.

    Each call is a :func:`run_transaction`, or an :func:`async_run_transaction` for ``async def``.
    The function takes the session as its first argument, and you call it without.  It keeps its
    name, docstring and annotations, and gets a signature without the session.  Methods cannot be
    decorated, because their first argument is ``self``.

    The arguments are those of :func:`run_transaction`, and are checked at once.

    Example::

        @transactional(Session, attempts=3)
        def add_one(session, ident):
            order = session.get_one_entity(Order, ident, LockOptions.ForUpdate)
            order.total += 1

        add_one(42)

    :raises TypeError: also for ``@transactional`` without a session factory, and for a method.
    """
    policy = checked_policy(
        *(session_factory, attempts, backoff, max_backoff, retry_not_available, retry_on),
        commit_outcome,
    )

    def decorate(function: Callable[Concatenate[S, P], T]) -> Callable[P, T]:
        check_function("the argument of @transactional(session_factory)", function)
        signature = _without_session(function)
        wrap = _awaited if is_coroutine_function(function) else _called
        call = wraps(function)(wrap(policy, session_factory, function))
        call.__signature__ = signature  # type: ignore[attr-defined]
        return cast("Callable[P, T]", call)

    return decorate


def _called(policy: Policy, session_factory: Any, function: Callable[..., Any]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        _refuse_method(function, args)
        return run_checked(
            policy, session_factory, lambda session: function(session, *args, **kwargs)
        )

    return call


def _awaited(policy: Policy, session_factory: Any, function: Callable[..., Any]) -> Any:
    from .asyncio import retry as async_retry  # noqa: PLC0415  # needs greenlet, as sqlalchemy.ext.asyncio does

    async def call(*args: Any, **kwargs: Any) -> Any:
        _refuse_method(function, args)
        return await async_retry.run_checked(
            policy, session_factory, lambda session: function(session, *args, **kwargs)
        )

    return call


def _without_session(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in _TAKES_FIRST:
        raise TypeError(f"{function!r} must take the session as its first argument")
    # A static method also has the class in its qualified name; "self" distinguishes the two.
    if _is_in_class(function) and parameters[0].name in ("self", "cls"):
        raise _method_error(function, parameters[0].name)
    if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    return signature.replace(parameters=parameters)


def _is_in_class(function: Callable[..., Any]) -> bool:
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    return bool(scope) and not scope.endswith("<locals>")


def _refuse_method(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """:raises TypeError: the function is a method whose first parameter is not called ``self``."""
    if not args or not _is_in_class(function):
        return
    owner = args[0] if isinstance(args[0], type) else type(args[0])
    found = inspect.getattr_static(owner, function.__name__, None)
    if isinstance(found, classmethod):
        found = found.__func__
    if getattr(found, "__wrapped__", None) is function:
        first = next(iter(inspect.signature(function).parameters))
        raise _method_error(function, first)


def _method_error(function: Callable[..., Any], first_parameter: str) -> TypeError:
    return TypeError(
        f"{function!r} is a method, and @transactional would pass the session as its "
        f"{first_parameter}: decorate a function, or call run_transaction() in the method"
    )
