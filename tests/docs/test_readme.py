"""The README and docs/ are true: their samples run, their tables agree with the code."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Mapper

import sa_doclock
import sa_doclock.testing
from sa_doclock.dialects import ENTRY_POINT_GROUP, strategy_classes
from sa_doclock.errors import DOCS
from sa_doclock.sqlalchemy_internals import all_mappers
from tests.docs import error_texts, shell
from tests.docs.pages import (
    LANGUAGES,
    ROOT,
    Block,
    blocks_of,
    generated_parts,
    headings,
    links,
    pages,
    text_of,
)
from tests.docs.programs import (
    LIBRARIES,
    NotAsPromised,
    in_order,
    libraries_of,
    missing_for,
    run,
    run_python,
)
from tests.docs.reference import RETURNED
from tests.docs.tables import PARTS, PRODUCTS, current
from tests.support.rows import rows

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
OUTPUT_OF = "output of "


def samples_on(page: str) -> list[Block]:
    """Return the samples of a page to run."""
    blocks = [b for b in BLOCKS if (b.page, b.language) == (page, "python")]
    return [b for b in blocks if not b.not_run and not b.is_file]


def programs() -> dict[Block, Block]:
    """Return the samples whose output the page shows, with that output."""
    named = {(block.page, block.name): block for block in BLOCKS if block.name}
    return {
        named[page, name.removeprefix(OUTPUT_OF)]: output
        for (page, name), output in named.items()
        if name.startswith(OUTPUT_OF)
    }


LIBRARY = {b: name for page in PAGES for b, name in libraries_of(samples_on(page)).items()}
PROGRAMS = programs()
WITH_LIBRARY = sorted({(block.page, name) for block, name in LIBRARY.items() if name})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Provide a module and a folder for the samples of a page."""
    page = ModuleType("sample_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    monkeypatch.chdir(tmp_path)
    mapped = {*all_mappers()}
    yield page
    forget_classes(mapped)
    for value in list(vars(page).values()):
        if isinstance(value, Engine):
            value.dispose()
        elif isinstance(value, AsyncEngine):
            asyncio.run(value.dispose())


def forget_classes(kept: Collection[Mapper[Any]]) -> None:
    """Forget all other classes: two pages may map tables of the same name."""
    for registry in {one.registry for one in [*all_mappers()] if one not in kept}:
        registry.dispose()


def to_run(page: str, library: str | None = None) -> list[Block]:
    """Return the samples of a page that need no library, and those that need this library."""
    return [block for block in in_order(samples_on(page)) if LIBRARY[block] in (None, library)]


@pytest.mark.parametrize("page", sorted({block.page for block in LIBRARY}))
def test_the_samples_of_a_page_run(page: str, module: ModuleType) -> None:
    for block in to_run(page):
        run(block, vars(module))


def test_the_readme_runs_twice_in_one_folder(module: ModuleType) -> None:
    samples = to_run("README.md")
    mapped = {*all_mappers()}
    for _ in range(2):
        forget_classes(mapped)
        for block in samples:
            run(block, vars(module))
        module.engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_prints_twice_what_the_page_says(program: Block, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program.text + "\n", encoding="utf-8")
    for _ in range(2):
        done = run_python(tmp_path, "program.py")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == PROGRAMS[program].text + "\n"


def test_the_finding_of_the_page_on_audits_is_replayed(tmp_path: Path) -> None:
    for block in BLOCKS:
        if block.page == "docs/audit.md" and block.is_file:
            (tmp_path / str(block.name)).write_text(block.text + "\n", encoding="utf-8")
    done = run_python(tmp_path, "replay.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_of_the_readme_is_short() -> None:
    (program,) = (block for block in PROGRAMS if block.page == "README.md")
    assert len([line for line in program.text.splitlines() if line]) <= 30


@pytest.mark.slow
@pytest.mark.parametrize(("page", "library"), WITH_LIBRARY)
def test_the_samples_for_a_library_run(page: str, library: str, module: ModuleType) -> None:
    if missing := missing_for(library):
        pytest.skip(
            f"{page}: THE SAMPLES FOR {library} DID NOT RUN: pip install {' '.join(missing)}"
        )
    for block in to_run(page, library):
        run(block, vars(module))


@rows("block", BLOCKS, ids=str)
def test_a_block_is_in_a_language_that_is_checked(block: Block) -> None:
    assert block.language in LANGUAGES
    # tests/docs/test_tables.py runs the queries of these pages
    assert block.language != "sql" or block.page in {f"docs/{name}.md" for name in PRODUCTS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "sh" and not b.not_run], ids=str
)
def test_the_commands_of_a_page_exist(block: Block) -> None:
    commands = list(shell.commands_of(block.text))
    assert commands
    for words in commands:
        if words[0] == "sa-doclock":
            pytest.importorskip("typer")
        shell.check(words)


@pytest.mark.parametrize("page", [page for page in PAGES if generated_parts(page)])
def test_the_tables_of_a_page_are_those_of_the_code(page: str) -> None:
    """After an intended change: python -m tests.docs.tables."""
    parts = generated_parts(page)
    assert parts == current(parts)


def test_every_table_is_on_a_page() -> None:
    assert sorted(name for page in PAGES for name in generated_parts(page)) == sorted(PARTS)


@rows("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in links(text_of(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in headings(target.read_text(encoding="utf-8")), link


#: Names in CONTRIBUTING.md and the page on dialects that users do not import.
INTERNAL = {
    *("LockCall", "LockPlan", "LockRequest", "LockTarget"),
    *("LockMonitoring", "LockStatements", "LockStrategy", "LockWaits"),
}


@rows("page", PAGES)
def test_a_page_names_nothing_that_is_not_there(page: str) -> None:
    public = {*sa_doclock.__all__, *dir(sa_doclock.LockOptions), *dir(sa_doclock.LockingSession)}
    public |= {*RETURNED, *sa_doclock.testing.__all__, "LockEvents"}
    for name in re.findall(r"`(?:LockOptions\.|session\.(?!py))(\w+)", text_of(page)):
        assert name in public, name
    for name in re.findall(
        r"\b(Lock[A-Z]\w+|[A-Z]\w+(?:Refused|Detected|Violation))\b", text_of(page)
    ):
        assert name in {*public, *INTERNAL}, name


def test_the_readme_is_one_page() -> None:
    lines = text_of("README.md").splitlines()
    assert len(lines) <= 150
    assert next(n for n, line in enumerate(lines) if line.startswith("## ")) <= 40


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    (version,) = re.findall(r'^version = "(.*)"$', text_of("pyproject.toml"), re.MULTILINE)
    heading = next(line for line in text_of("CHANGELOG.md").splitlines() if line.startswith("## "))
    dated = r"\((unreleased|\d{4}-\d\d-\d\d)\)"
    assert re.fullmatch(rf"## {re.escape(version)} {dated}", heading), heading


def test_the_page_on_errors_says_what_to_do_about_each() -> None:
    reported = set(re.findall(r"`(\w+)`", text_of("docs/errors.md")))
    exceptions = {n for n in sa_doclock.__all__ if isinstance(getattr(sa_doclock, n), type)}
    exceptions = {n for n in exceptions if issubclass(getattr(sa_doclock, n), Exception)}
    assert exceptions <= reported


def test_the_address_in_the_text_of_each_error_leads_to_its_row() -> None:
    page = text_of("docs/errors.md")
    raised = [
        kind
        for kind in vars(sa_doclock).values()
        if isinstance(kind, type) and issubclass(kind, sa_doclock.DocLockError)
        if kind not in (sa_doclock.DocLockError, sa_doclock.LockFailed)  # never raised
    ]
    assert len(raised) > 10
    for kind in raised:
        address, _, code = str(kind("text")).rpartition(" ")[2].rstrip(")").rpartition("#")
        assert address == f"{DOCS}/errors.html"
        assert re.search(rf'<a id="{code}"></a>`{kind.__name__}`', page), code
    assert '<a id="local_to_a_node"></a>`ClusterLockWarning`' in page


def test_each_error_text_says_what_to_do() -> None:
    """A text without a cure has its cure in tests/docs/error_texts.py."""
    assert error_texts.without_cure() == []
    assert error_texts.unused_cures() == []


@pytest.mark.parametrize(("name", "title"), PRODUCTS.items())
def test_the_page_on_lock_errors_has_every_number_with_what_it_becomes(
    name: str, title: str
) -> None:
    rows = strategy_classes()[name].errors.codes.items()
    known = {number: found.error or found.in_lock for number, found in rows}
    ours = {str(number): kind.__name__ for number, kind in known.items() if kind is not None}
    _, _, section = text_of("docs/errors.md").partition(f"\n### {title}\n")
    written = re.findall(r"^\| (\w+) [^|]*\| `(\w+)`", section.partition("\n##")[0], re.MULTILINE)
    assert dict(written) == ours


def test_the_page_on_dialects_names_the_entry_points() -> None:
    assert f'"{ENTRY_POINT_GROUP}"' in text_of("docs/adding-a-dialect.md")


@pytest.mark.parametrize(
    ("sample", "complaint"),
    [
        ("1 + 1  # -> 3", "page.md:7: says '3', but it is '2'"),
        ("if True:\n    print(1)\n    # -> 2", "page.md:8: says '2', but it is '1'"),
        ("for one in ():\n    one  # -> 1", "page.md:8: was never run"),
        ("one = 1  # -> 1", "page.md:7: '# ->' belongs to no expression"),
    ],
)
def test_a_sample_that_promises_too_much_is_caught(sample: str, complaint: str) -> None:
    with pytest.raises(NotAsPromised) as caught:
        run(Block("page.md", 7, "python", sample), {})
    assert str(caught.value) == complaint


def test_a_sample_that_raises_is_caught_with_its_line() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(Block("page.md", 7, "python", "one = 1\none / 0"), {})
    assert [(e.path, e.lineno) for e in caught.traceback[-1:]] == [("page.md", 7)]


def test_what_a_sample_shows_may_be_cut_short() -> None:
    run(Block("page.md", 1, "python", 'print("at 0x7f", "end")\n# -> at ... end'), {})


@pytest.mark.parametrize(
    "line",
    [
        "make tea",
        "pip install 'sa-doclock[oracle]'",
        "sa-doclock stress --threads 3 --turbo",
        "alembic -c migrations/nowhere.ini upgrade head",
        "docker compose up oracle",
        "rm -rf .",
    ],
)
def test_a_command_that_is_not_there_is_caught(line: str) -> None:
    (words,) = shell.commands_of(line)
    with pytest.raises(shell.UnknownCommand):
        shell.check(words)


def test_all_libraries_of_samples_are_known() -> None:
    assert {name for _, name in WITH_LIBRARY} == set(LIBRARIES)
