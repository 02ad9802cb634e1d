"""The tutorial works: its files, written step by step into an empty folder, and pytest as a reader calls it."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of
from tests.docs.programs import run_python

PAGE = "docs/tutorial.md"
AFTER = "after "


def pytest_says(folder: Path) -> str:
    """Run the tests of the folder as the page says, and return what is printed."""
    done = run_python(folder, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly")
    return done.stdout + done.stderr


@pytest.mark.slow
def test_each_step_ends_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="THE TUTORIAL DID NOT RUN: pip install fastapi httpx")
    pytest.importorskip("httpx", reason="THE TUTORIAL DID NOT RUN: pip install fastapi httpx")
    shop = tmp_path / "shop.db"
    steps = 0
    for block in blocks_of(PAGE):
        if block.name is None:
            continue
        if not block.name.startswith(AFTER):
            (tmp_path / block.name).write_text(block.text + "\n", encoding="utf-8")
            continue
        said = pytest_says(tmp_path)
        for line in block.text.splitlines():
            assert re.search(rf"\b{re.escape(line)}\b", said), f"{block}\n{said}"
        steps += 1
        with sqlite3.connect(
            shop
        ) as connection:  # the reader's own order is not the tests' business
            connection.execute("INSERT OR IGNORE INTO orders (id, total) VALUES (42, 1)")
            assert connection.execute("SELECT * FROM orders").fetchall() == [(42, 1)]
        connection.close()
    assert steps == 4


def test_the_tutorial_has_six_steps() -> None:
    steps = re.findall(r"^## Step (\d):", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    assert steps == list("123456")
