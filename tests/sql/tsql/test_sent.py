"""Everything that is sent to SQL Server is good T-SQL, to its parser and to the rules beyond it.

It proves that no statement is refused for how it is written, and nothing about what one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest

from lab.tsql.checker import Checker
from lab.tsql.texts import statements, with_parameters
from tests.sql.golden import FOLDER
from tests.sql.test_checkouts import texts as texts_of_checkouts
from tests.sql.tsql import senders

GOLDEN = ("compiled", "sent", "waits")  # a statement after the other
SCRIPTS = ("migrations",)  # with GO between the batches, which the parser knows
SENT: dict[str, Callable[[], Iterator[str]]] = {
    **{driver: partial(senders.over, driver) for driver in senders.DRIVERS},
    "migrations": senders.by_migrations,
    "scripts of migrations": senders.in_scripts,
    "docs/mssql.md": senders.on_pages,
    "check-outs": partial(texts_of_checkouts, "mssql"),
    "the guard": senders.of_the_guard,
    "tests": senders.by_tests,
}


def assert_good(checker: Checker, texts: Iterable[tuple[str, str]]) -> None:
    """Fail with all that is wrong, each with where it stands."""
    places = {text: place for place, text in texts}  # a text is parsed once
    assert places, "there is nothing to parse"
    verdicts = checker.check([with_parameters(text) for text in places])
    wrong = [
        f"{place}: {'; '.join(verdict.syntax + verdict.rules)}\n{text}"
        for (text, place), verdict in zip(places.items(), verdicts, strict=True)
        if not verdict
    ]
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOLDEN)
def test_every_statement_of_a_golden_file(checker: Checker, kind: str) -> None:
    path = FOLDER / kind / "mssql.sql"
    found = statements(path.read_text(encoding="utf-8"))
    assert_good(checker, ((f"{kind}/{path.name}:{line}", text) for line, text in found))


@pytest.mark.parametrize("kind", SCRIPTS)
def test_every_batch_of_a_golden_script(checker: Checker, kind: str) -> None:
    path = FOLDER / kind / "mssql.sql"
    assert_good(checker, [(f"{kind}/{path.name}", path.read_text(encoding="utf-8"))])


@pytest.mark.slow
@pytest.mark.parametrize("sender", SENT)
def test_every_statement_that_is_sent_by(checker: Checker, sender: str) -> None:
    assert_good(checker, ((sender, text) for text in SENT[sender]()))


def test_no_golden_file_is_left_out() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/mssql.sql")} == {*GOLDEN, *SCRIPTS}


def test_no_test_compares_with_a_truth_value_by_is() -> None:
    """``column.is_(False)`` compiles to ``IS 0``, which is no T-SQL."""
    found = [
        path.name
        for path in senders.TESTS.rglob("*.py")
        if path.name != "test_sent.py"
        and re.search(r"\.is_(not)?\((True|False)\)", path.read_text(encoding="utf-8"))
    ]
    assert found == []
