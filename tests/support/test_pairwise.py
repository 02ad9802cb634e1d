"""--pairwise: what is in the selection, that it depends on the items alone, and that little is."""

from __future__ import annotations

import itertools
import random

from tests.support.pairwise import cover


def table(*sizes: int) -> dict[str, frozenset[object]]:
    values = [[(column, number) for number in range(size)] for column, size in enumerate(sizes)]
    return {
        str(row): frozenset(itertools.combinations(row, 2)) for row in itertools.product(*values)
    }


def test_every_pair_is_in_the_selection() -> None:
    rows = table(5, 4, 3, 3)
    kept = set(cover(rows))
    assert set().union(*(rows[name] for name in kept)) == set().union(*rows.values())
    assert len(kept) <= 2 * 5 * 4 < len(rows)


def test_it_depends_on_the_rows_alone() -> None:
    rows = table(4, 3, 3)
    shuffled = random.Random(7).sample(sorted(rows), len(rows))
    assert list(cover({name: rows[name] for name in shuffled})) == list(cover(rows))


def test_no_row_is_in_it_twice_or_for_nothing() -> None:
    rows = table(6, 2, 2)
    kept = list(cover(rows))
    assert len(kept) == len(set(kept))
    seen: set[object] = set()
    for name in kept:
        assert rows[name] - seen
        seen |= rows[name]


def test_of_two_columns_all_rows_are() -> None:
    assert set(cover(table(4, 3))) == {*table(4, 3)}
