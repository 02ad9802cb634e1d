"""The generated parts of the pages: tables, queries, pictures, evidence."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import sqlalchemy as sa

from tests.docs import exclusion, idioms
from tests.docs.pages import ROOT, blocks_of, headings, links, pages, text_of
from tests.docs.pictures import FOLDER, PICTURES, drawn, path_of, svg_of, timelines
from tests.support.databases import Database
from tests.support.rows import rows

# --------------------------------------------------------------------------------------------------
# The table of docs/adopting.md matches the behavior of each database.


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_the_idioms_are_what_the_database_makes_of_them(database: Database) -> None:
    """After an intended change: the commands in tests/docs/idioms.py."""
    engine = database.engine(**idioms.options_of(database.name))
    database.create(idioms.Base.metadata)
    assert idioms.measure(engine) == idioms.figures()[database.name]


def test_the_page_has_22_idioms() -> None:
    assert len(idioms.IDIOMS) == 22


# --------------------------------------------------------------------------------------------------
# tests/sql/evidence.md names the evidence for each claim: each letter is a kind of test.

PAGE = "docs/mssql.md"
CLAIMS_PAGE = "tests/sql/evidence.md"
TESTS = ROOT / "tests"
#: The kind of evidence of each file under tests/, by the beginning of its path; other files belong to
#: the live suite.
LETTERS = {
    "sql/test_golden.py": "T",
    "sql/test_mssql_migrations.py": "T",
    "sql/test_mssql_waits.py": "TS",
    "sql/test_mssql_": "S",
    "sql/test_compatible_servers.py": "S",
    "integration/alembic/test_online.py": "S",
    "sql/tsql/": "P",
    "sql/tds/": "W",
}
OF_OTHERS = frozenset("BMQ")
"""The letters of evidence that is no test of ours: another server, documentation, others' probes."""
_FILE = re.compile(r"`([\w/]+\.py)`")


class Claim(NamedTuple):
    text: str
    letters: frozenset[str]
    where: str

    @property
    def files(self) -> list[str]:
        """The test files that the claim names."""
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


# --------------------------------------------------------------------------------------------------
# The queries on each database's page run on that database.

# The pages use "orders", which a real database may contain: tests drop their tables.
TABLE = "lk_order_of_the_docs"


def test_the_queries_of_its_page_run(database: Database) -> None:
    metadata = sa.MetaData()
    sa.Table(TABLE, metadata, sa.Column("id", sa.Integer, primary_key=True))
    database.create(metadata)
    with database.engine().connect() as connection:
        for block in blocks_of(f"docs/{database.name}.md"):
            if block.language == "sql" and not block.generated:
                text = re.sub(r"\borders\b", TABLE, re.sub(r"--.*", "", block.text))
                for statement in filter(str.strip, text.split(";")):
                    connection.exec_driver_sql(statement)


# --------------------------------------------------------------------------------------------------
# The pictures in docs/pictures match the current output of their scripts.


def words_of(svg: str) -> list[str]:
    """Return the texts of a picture: rich's drawing may differ between releases."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return html.unescape(" ".join(texts)).replace("\N{NO-BREAK SPACE}", " ").split()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    """After an intended change: python -m tests.docs.pictures."""
    words = words_of(path_of(name).read_text(encoding="utf-8"))
    assert words == words_of(svg_of(name))
    written = path_of(name).read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in written
    assert "url(http" not in written  # a page loads nothing from another server
    assert {"waits": "import:prices", "doctor": "warning"}[name] in " ".join(words)


@pytest.mark.parametrize("name", timelines())
def test_a_time_line_is_up_to_date(name: str) -> None:
    """After an intended change: python -m tests.docs.pictures."""
    assert path_of(name).read_text(encoding="utf-8") == drawn(name)


@pytest.mark.parametrize("name", timelines())
def test_the_words_of_a_time_line_have_room(name: str) -> None:
    for panel in timelines()[name].panels:
        assert len(panel.title) <= 48
        assert all(len(step.text) <= 25 for step in panel.steps)
        columns = range(len(panel.names))
        for column in columns:  # no label overlaps another step of its session
            steps = sorted((s.at, s.at + s.rows) for s in panel.steps if s.session == column)
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(steps))


def test_the_picture_of_exclusion_is_up_to_date() -> None:
    assert exclusion.SVG.read_text(encoding="utf-8") == exclusion.draw()


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_the_picture_of_exclusion_is_what_the_database_does(database: Database) -> None:
    database.create(exclusion.Base.metadata)
    engine = database.engine()
    assert exclusion.measure(engine) == exclusion.figures()[database.name]


def test_the_round_trips_are_those_of_the_page() -> None:
    reported = re.search(
        r"^\| get_document, save_changes \| (\d) \| (\d) \|$",
        text_of("docs/postgresql.md"),
        re.MULTILINE,
    )
    assert reported is not None
    drawn_trips = [
        {step.text.partition(":")[0] for step in panel.steps if step.session == 0}
        for panel in timelines()["round-trips"].panels
    ]
    assert [len(trips) for trips in drawn_trips] == [int(reported[1]), int(reported[2])]


def test_each_picture_is_on_a_page_with_a_text_alternative() -> None:
    shown = {
        name: text
        for page in pages()
        for text, name in re.findall(r"!\[([^\]]*)\]\((?:\S*/)?(\S+\.svg)\)", text_of(page))
    }
    ours = {path.name for path in FOLDER.glob("*.svg")}
    assert ours <= set(shown)
    assert all(shown[name] for name in ours)
    for name in (*timelines(), "exclusion"):
        svg = path_of(name).read_text(encoding="utf-8")
        assert re.search(r'<title id="title">\S.*</title>\n  <desc id="desc">\S', svg)
        assert "prefers-color-scheme: dark" in svg
