"""The tutorial works: its files, written step by step into an empty folder, and pytest as a reader calls it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of

PAGE = "docs/tutorial.md"
AFTER = "after "


def pytest_says(folder: Path) -> str:
    """Run the tests of the folder as the page says, and return what is printed."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    installed = "site-packages" in (sys.modules["sa_doclock"].__file__ or "")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=folder,
        env={**os.environ, **({} if installed else {"PYTHONPATH": paths})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_each_step_ends_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="THE TUTORIAL DID NOT RUN: pip install fastapi httpx")
    pytest.importorskip("httpx", reason="THE TUTORIAL DID NOT RUN: pip install fastapi httpx")
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
    assert steps == 4


def test_the_tutorial_has_six_steps() -> None:
    steps = re.findall(r"^## Step (\d):", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    assert steps == list("123456")
