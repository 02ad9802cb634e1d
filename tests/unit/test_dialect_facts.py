"""The rows of a dialect's errors, and the locks that wait."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockOptions
from sa_doclock.dialects import may_wait, strategy_classes
from sa_doclock.dialects.base import Ends, ErrorCode, EveryError, Limit, LockStrategy, MetError

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
SNAPSHOT = LockOptions.SnapshotRead
each_database = pytest.mark.parametrize(
    "name", ["postgresql", "mysql", "mariadb", "mssql", "sqlite"]
)


def strategy_of(name: str) -> LockStrategy:
    url = "postgresql+psycopg2://" if name == "postgresql" else f"{name}://"
    engine = sa.create_mock_engine(url, lambda *_: None)
    return strategy_classes()[name](engine.dialect)


@each_database
def test_a_row_has_one_class_and_each_says_something(name: str) -> None:
    for code, row in strategy_of(name).errors.codes.items():
        assert row != ErrorCode(), code
        assert row.error is None or row.in_lock is None, code
        assert not (row.why and row.error is row.in_lock is None), code


@each_database
def test_a_number_without_a_row_means_nothing(name: str) -> None:
    errors = strategy_of(name).errors
    assert errors["no such number"] == errors[None] == ErrorCode()


@pytest.mark.parametrize(("name", "code"), [("mysql", 3024), ("mariadb", 1969)])
def test_a_limit_of_statements_is_a_failed_lock_only_if_the_statement_cannot_be_slow(
    name: str, code: int
) -> None:
    errors, connection = strategy_of(name).errors, Any
    met = MetError(code, ValueError(), connection, locking=True, by_key=False)  # type: ignore[arg-type]
    assert errors[code].limit is Limit.STATEMENT
    assert errors.meaning(met).in_lock is None
    assert errors.meaning(met._replace(by_key=True)).in_lock is errors[code].in_lock is not None


@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("postgresql", set()),  # each error aborts, and the transaction is there until the rollback
        ("mysql", {1206, 1213}),
        ("mariadb", {1020, 1206, 1213}),
        ("sqlite", set()),
    ],
)
def test_the_errors_that_end_a_transaction(name: str, ended: set[int]) -> None:
    errors = strategy_of(name).errors
    assert {code for code, row in errors.codes.items() if row.ends is Ends.TRANSACTION} == ended
    assert (errors.every_error is EveryError.ABORTS) is (name == "postgresql")


@pytest.mark.parametrize(
    ("name", "waiting"),
    [
        ("postgresql", {FOR_UPDATE, SHARED}),
        ("mysql", {FOR_UPDATE, SHARED}),
        ("mariadb", {FOR_UPDATE, SHARED}),
        ("mssql", {FOR_UPDATE}),  # a SharedRead is a snapshot
        ("sqlite", {FOR_UPDATE}),  # the file's write lock
    ],
)
def test_the_locks_that_wait_follow_from_the_select(name: str, waiting: set[LockOptions]) -> None:
    strategy = strategy_of(name)
    assert {lock for lock in (FOR_UPDATE, SHARED, SNAPSHOT) if may_wait(strategy, lock)} == waiting
    assert may_wait(strategy, FOR_UPDATE | LockOptions.NoKey)
