"""Another Session class beside LockingSession among the bases of a class, in both orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession, LockMisuse, LockOptions, with_lock
from sa_doclock.testing import recorded_locks
from tests.support.models import Order


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
    assert f".{method}() would call {called}() of Session past LockingSession" in text
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
