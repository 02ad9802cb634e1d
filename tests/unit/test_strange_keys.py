"""Every method that takes a key refuses an invalid one, before it sends anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, Integer, String, TypeDecorator, event, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from sa_doclock.core.documents.mapping import document_key, identity_of, key_attributes, mapper_of
from sa_doclock.testing import assert_locked
from tests.sql.models import Journal
from tests.support.models import ColdStore, Contract, Fault, Lease, Order, Ticket, Voucher
from tests.support.rows import rows
from tests.unit.mappings import NightTaxi, Vehicle

pytestmark = pytest.mark.each_value

ForUpdate = LockOptions.ForUpdate
LOCKS = (LockOptions.None_, LockOptions.NoLock, LockOptions.SharedRead, ForUpdate)


class Base(DeclarativeBase):
    pass


class Country(Base):
    __tablename__ = "strange_country"
    code: Mapped[str] = mapped_column(String(5), primary_key=True)


class Stamp(TypeDecorator[str]):
    """A version whose values only its type understands."""

    impl = String
    cache_ok = True


class Numbered(Base):
    __tablename__ = "strange_numbered"
    id: Mapped[int] = mapped_column(primary_key=True)
    version = mapped_column(Integer, nullable=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Stamped(Base):
    __tablename__ = "strange_stamped"
    id: Mapped[int] = mapped_column(primary_key=True)
    version = mapped_column(Stamp, nullable=False)
    __mapper_args__ = {"version_id_col": version, "version_id_generator": False}  # noqa: RUF012


Call = Callable[[Any, Any, Any, LockOptions], Any]
METHODS: dict[str, Call] = {
    "get_entity": lambda s, entity, ident, lock: s.get_entity(entity, ident, lock),
    "get_one_entity": lambda s, entity, ident, lock: s.get_one_entity(entity, ident, lock),
    "get_entities": lambda s, entity, ident, lock: s.get_entities(entity, [ident], lock),
    "in given order": lambda s, e, ident, lock: s.get_entities(e, [ident], lock, order="given"),
    "get_document": lambda s, entity, ident, lock: s.get_document(entity, ident, lock),
    "get_one_document": lambda s, entity, ident, lock: s.get_one_document(entity, ident, lock),
    "get_documents": lambda s, entity, ident, lock: s.get_documents(entity, [ident], lock),
}
BLOCKS: dict[str, Call] = {
    "locked": lambda s, entity, ident, lock: s.locked(entity, ident, lock),
    "locked_document": lambda s, entity, ident, lock: s.locked_document(entity, ident, lock),
    "locked_documents": lambda s, entity, ident, lock: s.locked_documents(entity, [ident], lock),
}
KEYS: dict[str, tuple[type[Any], Any, type[Exception]]] = {
    "1e300000": (Order, "1e300000", ValueError),
    "1e10000000": (Order, "1e10000000", ValueError),
    "5,000 digits": (Order, "9" * 5000, ValueError),
    "an int of 5,000 digits": (Order, 10**5000, ValueError),
    "too great": (Order, 2**63, ValueError),
    "nan": (Order, "nan", ValueError),
    "inf": (Order, "inf", ValueError),
    "float nan": (Order, float("nan"), ValueError),
    "float inf": (Order, float("inf"), ValueError),
    "1.5": (Order, 1.5, ValueError),
    "Decimal": (Order, Decimal("1e10000000"), ValueError),
    "hexadecimal": (Order, "0x10", ValueError),
    "Arabic digits": (Order, "\u0664\u0662", ValueError),
    "forged": (Order, "1\nERROR \x1b[2J", ValueError),
    "an instance": (Order, Order(id=1), TypeError),
    "a class": (Order, Order, TypeError),
    "a criterion": (Order, Order.id == 5, TypeError),
    "an attribute": (Order, Order.id, TypeError),
    "a select": (Order, select(Order.id), TypeError),
    "a lock": (Order, (ForUpdate,), TypeError),
    "a list of two": (Order, [1, 2], ValueError),
    "a list in a list": (Order, [[1]], TypeError),
    "a dict in a dict": (Order, {"id": {"id": 1}}, TypeError),
    "wrong names": (Order, {"number": 1}, ValueError),
    "bytes": (Order, b"42", TypeError),
    "None": (Order, None, ValueError),
    "an object": (Order, object(), TypeError),
    "composite: nan": (Voucher, (2024, "nan"), ValueError),
    "composite: a list": (Voucher, (2024, [1]), TypeError),
    "composite: a criterion": (Voucher, Voucher.year == 2024, ValueError),
    "composite: an instance": (Voucher, (Voucher(), 1), TypeError),
    "composite: wrong names": (Voucher, {"year": 2024, "no": 1}, ValueError),
    "composite: 5,000 digits": (Voucher, (2024, 10**5000), ValueError),
    "text: an instance": (Country, Country(code="a"), TypeError),
    "text: a criterion": (Country, Country.code == "a", TypeError),
    "text: a list": (Country, (["a"],), TypeError),
    "text: bytes": (Country, b"a", TypeError),
    "text: a bool": (Country, False, ValueError),
    "text: a float": (Country, 0.0, ValueError),
    "text: NUL": (Country, "a\0", ValueError),
    "text: 5,000 digits": (Country, 10**5000, ValueError),
}
each_key = rows(("entity", "ident", "error"), KEYS.values(), ids=KEYS)


def assert_short(entity: type[Any], error: BaseException) -> None:
    assert str(error).startswith(entity.__name__)
    assert str(error).isprintable()
    assert len(str(error)) < 300


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@each_key
def test_a_method_refuses_it(
    session: LockingSession,
    sent: list[str],
    method: Call,
    entity: type[Any],
    ident: Any,
    error: type[Exception],
) -> None:
    for lock in LOCKS:
        with pytest.raises(error) as caught:
            method(session, entity, ident, lock)
        assert_short(entity, caught.value)
    assert sent == []
    assert not session.in_transaction()


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
@each_key
def test_a_block_refuses_it(
    session: LockingSession,
    sent: list[str],
    block: Call,
    entity: type[Any],
    ident: Any,
    error: type[Exception],
) -> None:
    for lock in (LockOptions.SharedRead, ForUpdate):
        with pytest.raises(error) as caught, block(session, entity, ident, lock):
            pytest.fail("the block was entered")
        assert_short(entity, caught.value)
    assert sent == []
    assert not session.in_transaction()


@each_key
def test_the_testing_kit_refuses_it(entity: type[Any], ident: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught, assert_locked(entity, ident):
        pytest.fail("the block was entered")
    assert_short(entity, caught.value)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_asynchronous_methods_refuse_it(engine: Engine, method: Call) -> None:
    async def main() -> None:
        own = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
        sent: list[str] = []
        event.listen(own.sync_engine, "do_execute", lambda _, text, *__: sent.append(text))
        async with AsyncLockingSession(own) as session:
            for entity, ident, error in KEYS.values():
                with pytest.raises(error) as caught:
                    await method(session, entity, ident, ForUpdate)
                assert_short(entity, caught.value)
            assert sent == []
            assert not session.in_transaction()
        await own.dispose()

    asyncio.run(main())


CallWithKeys = Callable[[LockingSession, Any], object]
CALLS_WITH_KEYS: dict[str, CallWithKeys] = {
    "get_entities": lambda session, idents: session.get_entities(Order, idents, ForUpdate),
    "get_documents": lambda session, idents: session.get_documents(Order, idents, ForUpdate),
    "plain": lambda session, idents: session.get_entities(Order, idents),
    "given order": lambda session, idents: session.get_entities(
        Order, idents, ForUpdate, order="given"
    ),
    "locked_documents": lambda session, idents: session.locked_documents(Order, idents).__enter__(),
}


@pytest.mark.parametrize(
    "idents", [10**5000, "9" * 5000, "", b"1", {"id": 1}, Order.id == 5, Order(id=1)], ids=type
)
@pytest.mark.parametrize("call", CALLS_WITH_KEYS.values(), ids=CALLS_WITH_KEYS)
def test_what_is_no_collection_of_keys(
    session: LockingSession, sent: list[str], call: CallWithKeys, idents: Any
) -> None:
    with pytest.raises(TypeError, match="idents must be an iterable of primary keys") as caught:
        call(session, idents)
    assert len(str(caught.value)) < 150
    assert sent == []


@pytest.mark.parametrize(
    ("entity", "version"),
    [
        (Numbered, "9" * 5000),
        (Numbered, "1\n\x1b[2J"),
        (Numbered, 1.0),
        (Numbered, Numbered.version == 1),
        (Stamped, Stamped.version == "a"),
        (Stamped, Stamped(id=1)),
    ],
    ids=["long", "forged", "float", "criterion", "criterion of any type", "instance"],
)
@pytest.mark.parametrize("lock", [LockOptions.None_, ForUpdate], ids=str)
def test_what_is_no_version(
    session: LockingSession, sent: list[str], entity: Any, version: Any, lock: LockOptions
) -> None:
    with pytest.raises(TypeError, match=f"the version of {entity.__name__} is of") as caught:
        session.get_entity(entity, 1, lock, version=version)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 150
    assert sent == []


@pytest.mark.parametrize("ident", ["1", " 1 ", 1.0, Decimal(1), True, "1e0", (1,), {"id": "1"}])
def test_what_says_the_same_is_the_same_document(session: LockingSession, ident: Any) -> None:
    order = session.get_one_entity(Order, ident, ForUpdate)
    assert session.held_locks == {(Order, (1,)): ForUpdate}
    with session.locked(Order, ident) as again, assert_locked(Order, ident):
        assert again is order
        session.rollback()
        session.get_entities(Order, [ident, 1], ForUpdate)


# --------------------------------------------------------------------------------------------------
# A primary key in the form Session.get() accepts, or a clear refusal.

ORDER, VOUCHER = mapper_of(Order), mapper_of(Voucher)


class Key(NamedTuple):
    year: int
    number: int


@pytest.mark.parametrize(
    ("ident", "identity"),
    [
        (42, (42,)),
        ("42", (42,)),
        ((42,), (42,)),
        ([42], (42,)),
        ({"id": 42}, (42,)),
    ],
    ids=repr,
)
def test_a_key_of_one_column(ident: Any, identity: tuple[Any, ...]) -> None:
    assert identity_of(ORDER, ident) == identity


@pytest.mark.parametrize(
    "ident",
    [(2024, 1), [2024, 1], Key(2024, 1), {"number": 1, "year": 2024}],
    ids=["tuple", "list", "named tuple", "dict"],
)
def test_a_composite_key_in_the_order_of_the_mapper(ident: Any) -> None:
    assert identity_of(VOUCHER, ident) == (2024, 1)


def test_a_row_of_a_result_is_a_key(engine: Engine) -> None:
    with engine.connect() as connection:
        row = connection.execute(select(Voucher.year, Voucher.number)).first()
    assert identity_of(VOUCHER, row) == (2024, 1)


def test_a_key_may_be_null_in_part() -> None:
    assert identity_of(VOUCHER, (2024, None)) == (2024, None)


def test_a_dict_has_the_names_of_the_attributes_not_of_the_columns() -> None:
    journal = mapper_of(Journal)
    assert key_attributes(journal) == ("id",)
    assert identity_of(journal, {"id": 1}) == (1,)
    with pytest.raises(ValueError, match=r"Journal has the primary key \(id\)"):
        identity_of(journal, {"Key": 1})


WRONG = {
    "too many": (Order, (1, 2)),
    "empty tuple": (Order, ()),
    "empty dict": (Order, {}),
    "scalar": (Voucher, 2024),
    "str": (Voucher, "24"),
    "too few": (Voucher, (2024,)),
    "too many of two": (Voucher, (2024, 1, 1)),
    "dict too small": (Voucher, {"year": 2024}),
    "dict too large": (Voucher, {"year": 2024, "number": 1, "total": 30}),
    "dict of others": (Voucher, {"year": 2024, "no": 1}),
    "None": (Order, None),
    "(None,)": (Order, (None,)),
    "None twice": (Voucher, (None, None)),
    "dict of None": (Order, {"id": None}),
}


@rows(("entity", "ident"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("lock", [LockOptions.None_, LockOptions.ForUpdate])
def test_a_key_that_fits_no_row_is_refused_before_anything_is_sent(
    session: LockingSession, sent: list[str], entity: type[Any], ident: Any, lock: LockOptions
) -> None:
    with pytest.raises(ValueError, match=entity.__name__):
        session.get_entity(entity, ident, lock)
    assert sent == []
    assert not session.in_transaction()


@pytest.mark.parametrize(
    ("entity", "root"),
    [
        (Order, Order),
        (Lease, Contract),
        (Contract, Contract),
        (Fault, Ticket),
        (ColdStore, ColdStore),
        (NightTaxi, Vehicle),
    ],
)
def test_a_document_is_known_by_its_root_unless_it_is_concrete(
    entity: type[Any], root: type[Any]
) -> None:
    assert document_key(mapper_of(entity), (1,)) == (root, (1,))
