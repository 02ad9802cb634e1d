"""A primary key as Session.get() takes it, or a clear refusal."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, select

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.documents.mapping import document_key, identity_of, key_attributes, mapper_of
from tests.sql.models import Journal
from tests.support.models import ColdStore, Contract, Fault, Lease, Order, Ticket, Voucher
from tests.support.rows import rows
from tests.unit.mappings import NightTaxi, Vehicle

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
