"""Numbers that stand in the text of a statement, and differ from call to call: a lock timeout."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import TextClause, bindparam, text


def text_with_numbers(words: str, **numbers: int | Decimal) -> TextClause:
    """Return this text, with a number in place of each name such as ``:seconds``.

    SQLAlchemy writes them into the text when it executes the statement.  So it compiles one
    statement for all numbers, where a text for each would fill the engine's cache.
    """
    return text(words).bindparams(
        *(bindparam(name, value, literal_execute=True) for name, value in numbers.items())
    )
