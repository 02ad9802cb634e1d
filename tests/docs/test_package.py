"""The README in the built package has no relative links, and is otherwise the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from lab.running.progress import say
from sa_doclock.errors import DOCS, REPOSITORY
from tests.docs.package import description, main, relative_links
from tests.docs.pages import ROOT, links, text_of


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as an installer does: pip downloads the build requirements."""
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
    # Without the addresses, it equals the README
    text = text.replace(f"]({source}/blob/v{version}/", "](").replace(f"]({raw}/v{version}/", "](")
    assert text.strip() == text_of("README.md").strip()


@pytest.mark.slow
def test_the_package_has_modules_alone(wheel: Path) -> None:
    """A merge once left the file of a patch behind."""
    with ZipFile(wheel) as package:
        names = [name for name in package.namelist() if ".dist-info/" not in name]
    assert {Path(name).suffix for name in names} == {".py", ".typed"}


def test_every_address_of_the_project_is_that_of_the_errors() -> None:
    """Only the files that CONTRIBUTING.md lists contain the address, and all of them the same."""
    host = REPOSITORY.rpartition("/")[0]
    found = {
        path.relative_to(ROOT).as_posix(): set(re.findall(rf"{re.escape(host)}/[\w-]*", text))
        for path, text in _texts()
        if host in text
    }
    assert set(map(frozenset, found.values())) == {frozenset({REPOSITORY})}, found
    _, _, releasing = text_of("CONTRIBUTING.md").partition("## Releasing")
    listed = re.findall(r"`([\w./]+\.\w+)`", releasing.partition("a test finds")[0])
    assert sorted(found) == sorted(listed)
    _, _, urls = text_of("pyproject.toml").partition("[project.urls]\n")
    urls, _, _ = urls.partition("\n\n")
    assert {f'"{REPOSITORY}' in line for line in urls.splitlines()[1:]} == {True}


def test_errors_the_package_and_the_site_have_one_address_of_the_documentation() -> None:
    host = DOCS.rpartition("/")[0]
    found = {
        path.relative_to(ROOT).as_posix(): set(re.findall(rf"{re.escape(host)}/[\w-]*", text))
        for path, text in _texts()
        if host in text
    }
    assert found == {
        key: {DOCS} for key in ["README.md", "mkdocs.yml", "pyproject.toml", "sa_doclock/errors.py"]
    }
    assert f'\nDocumentation = "{DOCS}/"\n' in text_of("pyproject.toml")
    assert f'\nsite_url: !ENV [DOCS_SITE_URL, "{DOCS}/"]' in text_of("mkdocs.yml")


def test_both_distributions_have_one_version() -> None:
    project, auditor = text_of("pyproject.toml"), text_of("audit/pyproject.toml")
    (version,) = re.findall(r'^version = "(.*)"$', project, re.MULTILINE)
    assert f'\nversion = "{version}"\n' in auditor
    assert f'\ndependencies = ["sa-doclock=={version}"]\n' in auditor
    assert f'\naudit = ["sa-doclock-audit=={version}"]' in project


def _texts() -> Iterator[tuple[Path, str]]:
    """Yield the files of the checkout that people or programs read."""
    kinds = {".cfg", ".ini", ".json", ".md", ".py", ".toml", ".yml", ""}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [one for one in folders if one == ".github" or one[0] != "."]
        folders[:] = [one for one in folders if one not in {"build", "dist", "site", "__pycache__"}]
        for path in (Path(folder, name) for name in names):
            if path.suffix in kinds:
                yield path, path.read_text(encoding="utf-8", errors="replace")


def test_a_relative_link_is_found() -> None:
    text = "[a](docs/a.md#b) ![c](c.svg) [d](https://example.com) [e](#e)"
    assert relative_links(text) == ["docs/a.md#b", "c.svg", "#e"]
