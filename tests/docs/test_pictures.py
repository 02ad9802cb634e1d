"""The pictures in docs/pictures are what their scripts draw, and show what is so today."""

from __future__ import annotations

import html
import itertools
import re

import pytest

from tests.docs import exclusion
from tests.docs.pages import pages, text_of
from tests.docs.pictures import FOLDER, PICTURES, drawn, path_of, svg_of, timelines
from tests.support.databases import Database


def words_of(svg: str) -> list[str]:
    """Return the texts of a picture: how rich draws them may differ from release to release."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return html.unescape(" ".join(texts)).replace("\N{NO-BREAK SPACE}", " ").split()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    """After a change that is meant: python -m tests.docs.pictures."""
    words = words_of(path_of(name).read_text(encoding="utf-8"))
    assert words == words_of(svg_of(name))
    written = path_of(name).read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in written
    assert "url(http" not in written  # a page loads nothing from another server
    assert {"waits": "import:prices", "doctor": "warning"}[name] in " ".join(words)


@pytest.mark.parametrize("name", timelines())
def test_a_time_line_is_up_to_date(name: str) -> None:
    """After a change that is meant: python -m tests.docs.pictures."""
    assert path_of(name).read_text(encoding="utf-8") == drawn(name)


@pytest.mark.parametrize("name", timelines())
def test_the_words_of_a_time_line_have_room(name: str) -> None:
    for panel in timelines()[name].panels:
        assert len(panel.title) <= 48
        assert all(len(step.text) <= 25 for step in panel.steps)
        columns = range(len(panel.names))
        for column in columns:  # nothing lies on another step of its session
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
