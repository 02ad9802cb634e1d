"""The schema of a table, of which ``schema_translate_map`` makes another."""

from __future__ import annotations

import pytest
from sqlalchemy import MetaData, Table

from sa_doclock.dialects import schema_translation, translated_schema

MAP = "schema_translate_map"
PLAIN = Table("plain", MetaData())
SALES = Table("sales_order", MetaData(), schema="sales")


def test_without_a_map_there_is_no_option_and_the_schema_stays() -> None:
    assert schema_translation() == {}
    assert schema_translation({}, {"stream_results": True}) == {}
    assert translated_schema(PLAIN, {}) is None
    assert translated_schema(SALES, {}, {}) == "sales"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([{MAP: {"sales": "eu"}}], "eu"),
        ([{MAP: {None: "eu"}}], "sales"),
        ([{MAP: {"sales": None}}], None),
        ([{MAP: {"sales": "eu"}}, {}], "eu"),
        ([{MAP: {"sales": "eu"}}, {MAP: {"sales": "us"}}], "us"),
        ([{MAP: {"sales": "eu"}}, {MAP: {}}], "sales"),
        ([{MAP: {"sales": "eu"}}, {MAP: None}], "sales"),
    ],
)
def test_the_last_map_is_in_force(options: list[dict[str, object]], expected: str | None) -> None:
    assert translated_schema(SALES, *options) == expected
    assert schema_translation(*options) == {MAP: ([o[MAP] for o in options if MAP in o])[-1]}
