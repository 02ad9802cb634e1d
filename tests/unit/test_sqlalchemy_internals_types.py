"""The private name of a type that sqlalchemy_internals.py reads: ``_variant_mapping``."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer
from sqlalchemy.dialects import mysql

from sa_doclock.sqlalchemy_internals import variants_of


def test_the_variants_of_a_type_are_reported() -> None:
    unsigned, small = mysql.BIGINT(unsigned=True), Integer()
    type_ = BigInteger().with_variant(unsigned, "mysql", "mariadb").with_variant(small, "sqlite")
    assert variants_of(type_) == (unsigned, unsigned, small)


def test_most_types_have_none() -> None:
    assert variants_of(Integer()) == ()
