"""tests/sql/evidence.md says of each claim what it rests on: the letters are those of the tests behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT, headings, links, text_of
from tests.support.rows import rows

PAGE = "docs/mssql.md"
CLAIMS_PAGE = "tests/sql/evidence.md"
TESTS = ROOT / "tests"
#: What each file under tests/ is evidence of, by the beginning of its path; what is not here is
#: of the live suite.
LETTERS = {
    "sql/test_golden.py": "T",
    "sql/test_rules.py": "T",
    "sql/test_mssql_migrations.py": "T",
    "sql/test_mssql_waits.py": "TS",
    "sql/test_mssql_": "S",
    "sql/test_compatible_servers.py": "S",
    "integration/alembic/test_online.py": "S",
    "sql/tsql/": "P",
    "sql/tds/": "W",
}
OF_OTHERS = frozenset("BMQ")
"""The letters of what is no test of ours: another server, documentation, probes of others."""
_FILE = re.compile(r"`([\w/]+\.py)`")


class Claim(NamedTuple):
    text: str
    letters: frozenset[str]
    where: str

    @property
    def files(self) -> list[str]:
        """The tests that it names."""
        return _FILE.findall(self.where)


def _claims() -> Iterator[Claim]:
    _, _, rest = text_of(CLAIMS_PAGE).partition(
        "| Claim | rests on | in `tests/` |\n|---|---|---|\n"
    )
    for line in rest.partition("\n\n")[0].splitlines():
        text, letters, where = (cell.strip() for cell in line.strip("| \n").split(" | "))
        yield Claim(text, frozenset(letters.split(", ")), where)


CLAIMS = [*_claims()]


def _letters_of(file: str) -> str:
    return next((found for start, found in LETTERS.items() if file.startswith(start)), "L")


def test_there_are_claims() -> None:
    assert len(CLAIMS) > 20
    assert frozenset().union(*(claim.letters for claim in CLAIMS)) == set("TPSWLMBQ")


@rows("claim", CLAIMS, ids=lambda claim: claim.text[:60])
def test_a_claim_rests_on_the_tests_that_it_names(claim: Claim) -> None:
    missing = [file for file in claim.files if not (TESTS / file).is_file()]
    assert missing == []
    assert {
        letter for file in claim.files for letter in _letters_of(file)
    } == claim.letters - OF_OTHERS


@rows("claim", CLAIMS, ids=lambda claim: claim.text[:60])
def test_what_rests_on_documentation_says_which(claim: Claim) -> None:
    if "M" in claim.letters:
        assert re.search(r"https://|the same$|the guide$", claim.text + claim.where)


@rows("claim", CLAIMS, ids=lambda claim: claim.text[:60])
def test_what_others_have_seen_has_a_source_or_says_that_it_was_not_published(claim: Claim) -> None:
    if "Q" in claim.letters:
        assert re.search(r"https://|not published", claim.text + claim.where)
    if "B" in claim.letters:
        assert "\n## Babelfish\n" in text_of(CLAIMS_PAGE)


def test_each_letter_is_explained() -> None:
    explained = set(re.findall(r"^- \*\*([A-Z])\*\*: ", text_of(CLAIMS_PAGE), re.MULTILINE))
    assert explained == frozenset().union(*(claim.letters for claim in CLAIMS))


def test_its_links_lead_somewhere() -> None:
    folder = (ROOT / CLAIMS_PAGE).parent
    ours = [link for link in links(text_of(CLAIMS_PAGE)) if not link.startswith("https://")]
    assert ours
    for link in ours:
        path, _, anchor = link.partition("#")
        target = folder / path if path else ROOT / CLAIMS_PAGE
        assert target.exists(), link
        assert not anchor or anchor in headings(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize(
    "unseen",
    ["real lock manager", "Escalation", "Dirty reads", "pending states of ALTER DATABASE"],
)
def test_what_nobody_has_seen_is_reported(unseen: str) -> None:
    _, _, found = text_of(PAGE).partition("### Not tested\n")
    assert unseen in found
