"""Errors name the holders of the row."""

from __future__ import annotations

import copy
import pickle
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from sa_doclock import LockConnection, LockNotAvailable, lock_waits
from sa_doclock.dialects.innodb import lock_data
from sa_doclock.features.diagnosis import blockers_text

WHOLE = LockConnection(
    4711, "app", "billing", "idle in transaction", 12.34, "UPDATE  orders\nSET x"
)


@pytest.mark.parametrize(
    ("party", "text"),
    [
        (
            WHOLE,
            (
                "connection 4711 (user app, application 'billing', idle in transaction, its "
                "transaction open for 12.3 s): UPDATE orders SET x"
            ),
        ),
        (LockConnection(7), "connection 7"),
        (LockConnection(7, host="10.0.0.9"), "connection 7 (host 10.0.0.9)"),
        (LockConnection(7, user="app"), "connection 7 (user app)"),
        (LockConnection(7, state="active"), "connection 7 (active)"),
        (
            LockConnection(7, transaction_seconds=0.0),
            "connection 7 (its transaction open for 0.0 s)",
        ),
        (LockConnection(7, statement="SELECT 1"), "connection 7: SELECT 1"),
        (LockConnection(0, state="prepared transaction"), "connection 0 (prepared transaction)"),
    ],
)
def test_what_is_known_is_said(party: LockConnection, text: str) -> None:
    assert blockers_text([party], hide=False) == f"held by {text}"


def test_a_guess_is_called_one() -> None:
    assert (
        blockers_text([LockConnection(7, certain=False)], hide=False)
        == "perhaps held by connection 7"
    )


def test_a_long_statement_is_cut_and_its_length_said() -> None:
    text = blockers_text([LockConnection(7, statement="SELECT " + "x" * 493)], hide=False)
    assert text == f"held by connection 7: SELECT {'x' * 193}... (500 characters)"


def test_a_statement_is_left_out_where_the_engine_hides_parameters() -> None:
    assert (
        blockers_text([LockConnection(7, statement="SELECT 'secret'")], hide=True)
        == "held by connection 7"
    )


def test_what_a_server_tells_begins_no_line_and_sends_no_escape_code() -> None:
    text = blockers_text(
        [LockConnection(7, "a\nb", "c\x1b[2J", statement="SELECT '\x1b[31m'")], hide=False
    )
    assert text == (r"held by connection 7 (user a\nb, application 'c\x1b[2J'): SELECT '\x1b[31m'")


def test_of_many_three_are_said() -> None:
    parties = [LockConnection(number) for number in range(1, 6)]
    assert (
        blockers_text(parties, hide=False)
        == "held by connection 1; connection 2; connection 3; 2 more"
    )
    assert blockers_text(parties[:3], hide=False).endswith("connection 3")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_a_copy_of_the_error_tells_the_same(copied: Callable[[Any], Any]) -> None:
    error = LockNotAvailable("text")
    assert error.blockers == ()
    error.blockers = (WHOLE,)
    assert copied(error).blockers == (WHOLE,)


def test_a_party_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        WHOLE.user = "other"  # type: ignore[misc]


@pytest.mark.parametrize("bind", [None, "sqlite://", 1])
def test_only_engines_and_connections_can_be_asked(bind: Any) -> None:
    with pytest.raises(TypeError, match="needs an Engine or a Connection, not "):
        lock_waits(bind)


UUID = uuid.UUID(int=255)


@pytest.mark.parametrize(
    ("types", "key", "text"),
    [
        ([sa.Integer], (-3,), "-3"),
        ([sa.BigInteger], ("42",), "42"),
        ([sa.String], ("a'b",), "'a''b'"),
        ([sa.Integer, sa.String], (2024, "x"), "2024, 'x'"),
        ([sa.Uuid], (UUID,), f"'{UUID.hex}'"),
        ([sa.LargeBinary], (b"ab",), None),
        ([sa.Numeric], (1.5,), None),
    ],
)
def test_a_key_is_spelled_as_innodb_does(
    types: list[Any], key: tuple[Any, ...], text: str | None
) -> None:
    columns = [sa.Column(f"c{n}", kind, primary_key=True) for n, kind in enumerate(types)]
    table = sa.Table("t", sa.MetaData(), *columns)
    found = lock_data(mysql.dialect(), table, [key])
    assert found == ([] if text is None else [text])
