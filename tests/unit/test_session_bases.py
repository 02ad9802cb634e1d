"""Another Session class beside LockingSession among the bases of a class, in both orders."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_doclock import (
    AsyncLockingScopedSession,
    AsyncLockingSession,
    LockingScopedSession,
    LockingSession,
    LockMisuse,
    LockOptions,
    with_lock,
)
from sa_doclock.testing import recorded_locks
from tests.support.models import Order
from tests.support.rows import rows


def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method, as ``@deprecated`` does."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


class Plain(Session):
    def tenant(self) -> str:
        return "t"

    def commit(self) -> None:
        super().commit()

    def rollback(self) -> None:
        super().rollback()

    def find(self, statement: Any) -> Any:
        return self.execute(statement)


class Exec(Session):
    def exec(self, statement: Any) -> Any:
        return super().execute(statement)


class Wrapped(Session):
    @wrapped
    def exec(self, statement: Any) -> Any:
        return super().scalars(statement)


class Inside(Session):
    def save(self, objects: Any) -> Any:
        def run() -> None:
            super(Inside, self).bulk_save_objects(objects)

        return run()


class Property(Session):
    @property
    def ended(self) -> None:
        super().rollback()


class Static(Session):
    @classmethod
    def of(cls, session: Any) -> Any:
        return super(Static, session).scalar(sa.select(1))


class Below(Exec):
    pass


@pytest.mark.parametrize(
    ("base", "method", "called"),
    [
        (Exec, "exec", "execute"),
        (Below, "exec", "execute"),
        (Wrapped, "exec", "scalars"),
        (Inside, "save", "bulk_save_objects"),
        (Property, "ended", "rollback"),
        (Static, "of", "scalar"),
    ],
)
def test_a_base_that_would_go_past_it_is_refused_behind_it(
    base: type[Session], method: str, called: str
) -> None:
    with pytest.raises(LockMisuse) as caught:
        type("AppSession", (LockingSession, base), {})
    text = caught.value.args[0]
    assert f".{method}() would call Session.{called}() directly, without the locks" in text
    assert text.endswith(
        f"name LockingSession last: class AppSession({base.__name__}, LockingSession)"
    )
    type("AppSession", (base, LockingSession), {})


def test_a_base_that_does_not_is_allowed_in_both_orders() -> None:
    for bases in ((LockingSession, Plain), (Plain, LockingSession)):
        cls: Any = type("AppSession", bases, {})
        assert cls().tenant() == "t"


def test_the_right_order_is_reported_of_the_classes_own_bases() -> None:
    class Ours(LockingSession):
        pass

    with pytest.raises(LockMisuse, match=r"class AppSession\(Exec, Ours\) "):
        type("AppSession", (Ours, Exec), {})


def test_the_methods_of_a_base_in_front_take_the_lock(tmp_path: Path) -> None:
    class AppSession(Exec, LockingSession):
        pass

    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Order.metadata.create_all(engine, [Order.__table__])  # type: ignore[list-item]
    with recorded_locks() as locks, sessionmaker(engine, class_=AppSession)() as session:
        session.add(Order(id=1, total=0))
        session.commit()
        session.exec(with_lock(sa.select(Order), LockOptions.ForUpdate))
        assert list(session.held_locks) == [(Order, (1,))]
        assert [(lock.entity, lock.ident) for lock in locks] == [(Order, 1)]
    engine.dispose()


# --------------------------------------------------------------------------------------------------
# The scoped sessions have each method of the sessions, and reject factories of other sessions.

PAIRS: dict[type[Any], tuple[type[Any], type[Any], type[Any]]] = {
    LockingScopedSession: (scoped_session, LockingSession, Session),
    AsyncLockingScopedSession: (async_scoped_session, AsyncLockingSession, AsyncSession),
}
SYNC, ASYNC = sessionmaker(class_=LockingSession), async_sessionmaker(class_=AsyncLockingSession)


def own(kind: type[Any], base: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - set(dir(base))


METHODS = [
    (kind, name)
    for kind, (_, session, base) in PAIRS.items()
    for name in sorted(own(session, base))
]


@pytest.mark.parametrize("scoped", PAIRS)
def test_it_has_the_names_of_the_session(scoped: type[Any]) -> None:
    its_base, session, base = PAIRS[scoped]
    assert own(scoped, its_base) == own(session, base) != set()


@rows(("scoped", "name"), METHODS)
def test_a_method_is_that_of_the_session(scoped: type[Any], name: str) -> None:
    session = PAIRS[scoped][1]
    ours, theirs = (inspect.getattr_static(kind, name) for kind in (scoped, session))
    assert f"LockingSession.{name}" in (inspect.getdoc(ours) or "")
    if isinstance(theirs, property):
        ours, theirs = ours.fget, theirs.fget
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
    assert inspect.iscoroutinefunction(ours) is inspect.iscoroutinefunction(theirs)
    assert (ours.__module__, ours.__qualname__) == (scoped.__module__, f"{scoped.__name__}.{name}")


def test_each_scope_has_a_session_with_its_own_locks() -> None:
    scope = 1
    scoped = LockingScopedSession(SYNC, scopefunc=lambda: scope)
    first = scoped()
    assert scoped.held_locks._session is first  # type: ignore[attr-defined]
    scope = 2
    assert scoped(info={"of": "second"}) is not first
    assert scoped.info == {"of": "second"}
    assert scoped.session_factory is SYNC
    scoped.remove()
    assert scoped.info == {}


def test_the_method_of_a_subclass_is_called() -> None:
    class Own(LockingSession):
        def get_entities(self, *args: Any, **kwargs: Any) -> list[Any]:
            return [args, kwargs]

    scoped = LockingScopedSession(sessionmaker(class_=Own))
    assert scoped.get_entities(object, [1], order="given") == [(object, [1]), {"order": "given"}]


@pytest.mark.parametrize(
    ("scoped", "factory", "complaint"),
    [
        (LockingScopedSession, None, r"factory such as sessionmaker\(engine, .*, not None"),
        (LockingScopedSession, scoped_session(SYNC), "not <sqlalchemy.orm.scoping.scoped_session"),
        (LockingScopedSession, sessionmaker(), "class_=LockingSession.; this one makes a Session"),
        (LockingScopedSession, ASYNC, "this one makes a AsyncLockingSession"),
        (AsyncLockingScopedSession, None, r"such as async_sessionmaker\(engine, .*, not None"),
        (AsyncLockingScopedSession, async_scoped_session(ASYNC, int), "not <sqlalchemy"),
        (AsyncLockingScopedSession, async_sessionmaker(), "this one makes a AsyncSession"),
        (AsyncLockingScopedSession, SYNC, "this one makes a LockingSession"),
    ],
)
def test_a_factory_of_other_sessions_is_refused(scoped: Any, factory: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=f"^{scoped.__name__} needs a session.*{complaint}"):
        scoped(factory, scopefunc=int)


@pytest.mark.parametrize(("scoped", "base"), [(s, found[2]) for s, found in PAIRS.items()])
def test_a_function_that_makes_other_sessions_is_refused_when_it_has(
    scoped: Any, base: type[Any]
) -> None:
    registry = scoped(base, scopefunc=int)
    for use in (
        registry,
        lambda: registry(info={}),
        lambda: registry.add(object()),
        lambda: registry.held_locks,
    ):
        with pytest.raises(TypeError, match="this one makes a"):
            use()
        assert not registry.registry.has()


def test_a_scope_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="scopefunc must be a function"):
        AsyncLockingScopedSession(ASYNC, None)  # type: ignore[arg-type]
