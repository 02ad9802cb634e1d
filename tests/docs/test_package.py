"""The README in the built package has no relative link, and is otherwise the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.package import description, main, relative_links
from tests.docs.pages import ROOT, links, text_of
from tests.support.progress import say


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as an installer does: pip downloads what the build needs."""
    if not (ROOT / "sa_doclock").is_dir():
        pytest.skip("the tests run on an installed package, whose sources are not here")
    folder = tmp_path_factory.mktemp("dist")
    say("Downloading hatchling and what it needs, from PyPI: 0.3 MB, MIT, BSD and Apache-2.0")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), "."]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode and "Could not find a version" in done.stderr:
        if os.environ.get("SA_DOCLOCK_TEST_REQUIRE"):
            pytest.fail(f"pip cannot download the build requirements: {done.stderr}")
        pytest.skip("THE WHEEL WAS NOT BUILT: pip cannot download the build requirements")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("sa_doclock-*.whl")
    return path


@pytest.mark.slow
def test_no_link_of_the_package_is_relative(wheel: Path) -> None:
    text = description(wheel)
    assert len(links(text)) == len(links(text_of("README.md")))
    assert relative_links(text) == []
    assert main([str(wheel)]) == 0


@pytest.mark.slow
def test_the_links_lead_to_the_files_of_the_release(wheel: Path) -> None:
    project = text_of("pyproject.toml")
    (version,) = re.findall(r'^version = "(.*)"$', project, re.MULTILINE)
    (source,) = re.findall(r'^Source = "(.*)"$', project, re.MULTILINE)
    raw = source.replace("https://github.com/", "https://raw.githubusercontent.com/")
    text = description(wheel)
    assert f"]({raw}/v{version}/docs/pictures/lost-update.svg)" in text
    # Without the addresses it is the README
    text = text.replace(f"]({source}/blob/v{version}/", "](").replace(f"]({raw}/v{version}/", "](")
    assert text.strip() == text_of("README.md").strip()


def test_a_relative_link_is_found() -> None:
    text = "[a](docs/a.md#b) ![c](c.svg) [d](https://example.com) [e](#e)"
    assert relative_links(text) == ["docs/a.md#b", "c.svg", "#e"]
