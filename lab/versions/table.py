"""The table in docs/versions-tested.md, and the column in the README's table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lab.versions.result import Result, load

#: In the order of the table; others follow by name.
_PRODUCTS = (
    *("PostgreSQL", "MySQL", "MariaDB", "SQLite"),
    *("psycopg", "psycopg2-binary", "pg8000", "asyncpg"),
    *("PyMySQL", "mysqlclient", "mysql-connector-python", "mariadb", "aiomysql", "asyncmy"),
    *("aiosqlite", "SQLAlchemy", "Python"),
)
#: Products for which the first number alone identifies a feature release.
_ONE_NUMBER = ("PostgreSQL",)


def release_of(result: Result) -> tuple[int, ...]:
    """Return the version numbers that identify a release: 18 of 18.4, 10.11 of 10.11.14."""
    numbers = tuple(map(int, re.findall(r"\d+", result.version)))
    return numbers[:1] if result.product in _ONE_NUMBER else numbers[:2]


def releases(product: str) -> list[tuple[int, ...]]:
    """Return the releases of a product that ran without a failure, the oldest first."""
    found = (one for one in load().values() if one.product == product and not one.failed)
    return sorted({release_of(one) for one in found})


def in_words(product: str) -> str:
    """Return these releases as the README shows them: ``12 to 18``, or ``8.0, 8.4``."""
    found = releases(product)
    texts = [".".join(map(str, one)) for one in found]
    numbers = [one[0] for one in found]
    whole = {len(one) for one in found} == {1}
    if whole and len(found) > 1 and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{texts[0]} to {texts[-1]}"
    return ", ".join(texts) or "none"


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| Name | Version | Tested with | Date | Passed | Skipped, and why |"
    yield "|---|---|---|---|---|---|"
    for one in sorted(load().values(), key=_position):
        failed = f", **{one.failed} failed**" if one.failed else ""
        skipped = "; ".join(f"{number}: {reason}" for reason, number in one.skipped.items())
        yield (
            f"| `{one.component}` | {one.product} {one.version} | {one.tested_with} | {one.date} "
            f"| {one.passed}{failed} | {_escaped(skipped) or '0'} |"
        )


def _position(one: Result) -> tuple[int, str, list[int], str]:
    known = one.product in _PRODUCTS
    place = _PRODUCTS.index(one.product) if known else len(_PRODUCTS)
    return place, one.product, [*map(int, re.findall(r"\d+", one.version))], one.component


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")
