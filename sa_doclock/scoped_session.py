"""LockingScopedSession: a scoped_session that has the methods of LockingSession."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import cleandoc
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.util import ScopedRegistry

from .checkout_info import Checkout
from .keys import DocumentKey
from .options import LockOptions
from .session import CheckIn, LockingSession, Renew

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
S = TypeVar("S", bound=LockingSession)
T = TypeVar("T")


def _proxied(
    method: Callable[Concatenate[LockingSession, P], T],
) -> Callable[Concatenate[LockingScopedSession[Any], P], T]:
    """Return this method for a LockingScopedSession, with its signature and documentation."""

    @wraps(method)
    def call(self: LockingScopedSession[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = getattr(self(), method.__name__)(*args, **kwargs)
        return result

    return documented_proxy(call, "LockingSession", "LockingScopedSession")


def documented_proxy(call: F, session: str, scoped: str) -> F:
    """Give a proxy its name, and a docstring that first names the method behind it."""
    says = f"As :meth:`{session}.{call.__name__}`, of the current session."
    call.__doc__ = f"{says}\n\n{cleandoc(call.__doc__ or '')}"
    call.__module__ = call.__globals__["__name__"]
    call.__qualname__ = f"{scoped}.{call.__name__}"
    return call


def is_scoped_session(factory: object) -> bool:
    """Return whether this is a scoped_session or an async_scoped_session."""
    return isinstance(getattr(factory, "registry", None), ScopedRegistry)


def checked_factory(factory: F, wanted: type[Any], scoped: str, maker: str) -> F:
    """Return a factory that checks the class of each session that this one makes.

    :raises TypeError: it is not a factory, is a scoped session, or is known to make other sessions.
    """
    example = f"{maker}(engine, class_={wanted.__name__})"
    if not callable(factory) or is_scoped_session(factory):
        raise TypeError(f"{scoped} needs a session factory such as {example}, not {factory!r}")

    def check(made: Any) -> None:
        if not issubclass(made, wanted):
            raise TypeError(
                f"{scoped} needs a session factory such as {example}; "
                f"this one makes a {made.__name__}"
            )

    check(getattr(factory, "class_", wanted))

    @wraps(factory, updated=())
    def make(**options: Any) -> Any:
        session = factory(**options)
        check(type(session))
        return session

    return make  # type: ignore[return-value]


class LockingScopedSession(scoped_session[S]):
    """A :class:`sqlalchemy.orm.scoped_session` that has the methods of :class:`LockingSession`.

    Each method calls the current scope's session, which is made at its first use::

        Session = LockingScopedSession(sessionmaker(engine, class_=LockingSession))

        with Session.locked(Order, 42) as order:
            order.total += 1
        Session.remove()  # at the end of the request

    :param session_factory: ``sessionmaker(engine, class_=LockingSession)``.
    :param scopefunc: a function whose result identifies the scope; None: each thread is a scope.
    :raises TypeError: it is not a factory, or makes sessions of another class.  For a function
        other than a sessionmaker, the error comes with its first session.
    """

    def __init__(
        self, session_factory: sessionmaker[S], scopefunc: Callable[[], Any] | None = None
    ) -> None:
        self._make = checked_factory(
            session_factory, LockingSession, "LockingScopedSession", "sessionmaker"
        )
        super().__init__(self._make, scopefunc)
        self.session_factory = session_factory

    def __call__(self, **kw: Any) -> S:
        """Return the current session; if there is none, make it with these arguments."""
        if kw and not self.registry.has():
            self.registry.set(self._make(**kw))
            kw = {}
        return super().__call__(**kw)

    @property
    def held_locks(self) -> Mapping[DocumentKey, LockOptions]:
        """See :attr:`LockingSession.held_locks`."""
        return self().held_locks

    get_entity = _proxied(LockingSession.get_entity)
    get_one_entity = _proxied(LockingSession.get_one_entity)
    get_or_create_entity = _proxied(LockingSession.get_or_create_entity)
    lock = _proxied(LockingSession.lock)
    get_entities = _proxied(LockingSession.get_entities)
    get_document = _proxied(LockingSession.get_document)
    get_one_document = _proxied(LockingSession.get_one_document)
    get_documents = _proxied(LockingSession.get_documents)
    entity_set = _proxied(LockingSession.entity_set)
    locked = _proxied(LockingSession.locked)
    locked_document = _proxied(LockingSession.locked_document)
    locked_documents = _proxied(LockingSession.locked_documents)
    lock_key = _proxied(LockingSession.lock_key)
    check_out = _proxied(LockingSession.check_out)
    take_over = _proxied(LockingSession.take_over)
    renew = cast("Renew[Checkout]", _proxied(LockingSession.renew))
    check_in = cast("CheckIn[None]", _proxied(LockingSession.check_in))
    checkout_of = _proxied(LockingSession.checkout_of)
    checkouts = _proxied(LockingSession.checkouts)
    save_changes = _proxied(LockingSession.save_changes)
    release_locks = _proxied(LockingSession.release_locks)
    on_commit = _proxied(LockingSession.on_commit)
    unguarded = _proxied(LockingSession.unguarded)
