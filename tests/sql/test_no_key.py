"""NoKey: FOR NO KEY UPDATE on PostgreSQL, and the text of plain ForUpdate elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Select, inspect, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockMisuse, LockOptions, document, with_lock
from sa_doclock.core.statements import locked_entity_of
from sa_doclock.core.statements.by_key import select_by_key, select_by_keys
from sa_doclock.core.statements.with_lock import refuse_other_lock
from tests.sql.models import Order
from tests.sql.servers import DATABASES, serving
from tests.support.rows import rows

ForUpdate, NoKey = LockOptions.ForUpdate, LockOptions.NoKey
MODIFIERS = (LockOptions.None_, LockOptions.NoWait, LockOptions.SkipLocked)


class Base(DeclarativeBase):
    pass


@document(no_key=True)
class Customer(Base):
    __tablename__ = "nk_customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "plain"}  # noqa: RUF012


class Company(Customer):
    __mapper_args__ = {"polymorphic_identity": "company"}  # noqa: RUF012


def _text(statement: Select[Any], database: str) -> str:
    with serving(database) as (engine, _):
        return str(statement.compile(dialect=engine.dialect))


@pytest.mark.parametrize("modifier", MODIFIERS, ids=str)
def test_postgresql_leaves_the_key_to_others(modifier: LockOptions) -> None:
    plain = _text(with_lock(select(Order), ForUpdate | modifier), "postgresql")
    no_key = _text(with_lock(select(Order), ForUpdate | NoKey | modifier), "postgresql")
    assert "FOR UPDATE OF" in plain
    assert no_key == plain.replace("FOR UPDATE OF", "FOR NO KEY UPDATE OF")


@rows("modifier", MODIFIERS, ids=str)
@rows("server", [one for one in DATABASES if one != "postgresql"])
def test_elsewhere_the_text_is_that_of_for_update(server: str, modifier: LockOptions) -> None:
    plain = _text(with_lock(select(Order), ForUpdate | modifier), server)
    assert _text(with_lock(select(Order), ForUpdate | NoKey | modifier), server) == plain


@pytest.mark.parametrize("entity", [Customer, Company])
def test_it_is_the_for_update_of_a_class_declared_so(entity: type[Customer]) -> None:
    mapper = inspect(entity)
    for statement in (
        with_lock(select(entity), ForUpdate),
        select_by_key(mapper, ForUpdate),
        select_by_keys(mapper, ForUpdate, [(1,), (2,)]),
    ):
        assert "FOR NO KEY UPDATE OF nk_customer" in _text(statement, "postgresql")
    shared = _text(with_lock(select(entity), LockOptions.SharedRead), "postgresql")
    assert "FOR SHARE OF nk_customer" in shared


def test_another_for_update_in_its_place_is_refused() -> None:
    statement = with_lock(select(Order), ForUpdate | NoKey)
    locked = locked_entity_of(statement)
    assert locked is not None
    refuse_other_lock(statement, locked)
    with pytest.raises(LockMisuse, match="has replaced the lock"):
        refuse_other_lock(statement.with_for_update(of=Order), locked)
