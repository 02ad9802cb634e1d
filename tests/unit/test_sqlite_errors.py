"""SQLite's error numbers, on Python 3.10 too, whose sqlite3 tells none."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import create_engine

from sa_doclock.dialects import strategy_for

TEXTS = {
    "database is locked": 5,
    "database table is locked": 6,
    "database table is locked: lk_order": 6,
    "attempt to write a readonly database": 8,
    "no such table: lk_order": None,
}


@pytest.mark.parametrize(("text", "number"), TEXTS.items())
def test_the_text_tells_it_where_there_is_no_number(text: str, number: int | None) -> None:
    error = sqlite3.OperationalError(text)
    assert not hasattr(error, "sqlite_errorcode")  # not from SQLite itself
    assert strategy_for(create_engine("sqlite://")).errors.native_code(error) == number
