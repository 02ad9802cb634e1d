"""The steps of the site's build that are this project's own; mkdocs calls the functions by their names.

The pages are written for GitHub and for the site.  What differs is changed here:

- the README is the first page, and CHANGELOG.md the page on changes;
- a link out of docs/ (to a test, to CONTRIBUTING.md) leads to the repository;
- the hidden samples and marks of the tests are left out;
- a page that the navigation does not name is added at its end;
- the page of all error texts is made from the source, for the site alone;
- the names of SQLAlchemy and of Python in a signature are links (inventory.json);
- llms.txt lists the pages, and llms-full.txt has their text with the docstrings.
"""

from __future__ import annotations

import inspect
import json
import pydoc
import re
import sys
from pathlib import Path
from posixpath import normpath
from typing import Any

import yaml
from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {"index.md": "README.md", "changes.md": "CHANGELOG.md"}
"""Pages of the site that are files of the repository's root."""
PICTURES = "benchmarks/pictures/"
"""The folder of pictures that are drawn by the benchmarks, and shown on a page."""

INVENTORY: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("inventory.json").read_text(encoding="utf-8")
)
"""Addresses of names of other projects, by the address of their documentation."""

SINCE: dict[str, str] = {
    f"sa_doclock.{name}": version
    for version, names in json.loads(
        Path(__file__).with_name("since.json").read_text(encoding="utf-8")
    ).items()
    for name in names
}
"""The version that a public name came with."""

_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE = re.compile(r"`[^`\n]+`")
_ROLE = re.compile(r":(?:class|func|meth|attr|exc|mod):<code>~?(?:sa_doclock\.)?([\w.]+)</code>")
_DIRECTIVE = re.compile(r"^::: (\S+)\n((?: +.*\n?)*)", re.MULTILINE)

_OF_A_MODULE = re.compile(r"^sa_doclock\.(?:\w+\.)*(\w+)\.\1$")
_API_HEADING = re.compile(
    r'(?P<start><h\d id="(?P<name>sa_doclock[\w.]*)" class="doc doc-heading">.*?)'
    r'(?P<end><a [^>]*class="headerlink".*?</h\d>)',
    re.DOTALL,
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that have no place in the navigation."""
    named = set(_paths(config.nav or []))
    docs = Path(config.docs_dir)
    found = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    if more := sorted(found - named):
        assert config.nav is not None
        config.nav.append({"More": more})
    return config


def _paths(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [path for entry in entries for path in _paths(entry)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, that of the error texts, the benchmarks' pictures."""
    for name, source in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "error-messages.md", content=_error_messages()))
    for path in (ROOT / PICTURES).glob("*.svg"):
        files.append(File.generated(config, PICTURES + path.name, abs_src_path=str(path)))
    return files


def _error_messages() -> str:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # mkdocs is no module of the repository's root
    from tests.docs import error_texts  # noqa: PLC0415  # found by the line above

    return "\n".join(error_texts.page())


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the page for the site."""
    name = page.file.src_uri
    folder = "" if name in ROOT_PAGES else f"docs/{Path(name).parent.as_posix()}/"
    repository = config.extra["repository"]
    parts = _FENCED.split(_COMMENT.sub("", markdown))
    for number in range(0, len(parts), 2):  # the others are fenced
        text = _LINK.sub(
            lambda link: f"{link[1]}{_target(link[2], folder, name, repository)}{link[3]}",
            parts[number],
        )
        lines = text.split("\n")
        parts[number] = "\n".join(_with_plain_pipes(line) for line in lines)
    return "".join(parts)


def _with_plain_pipes(line: str) -> str:
    """Take the backslash away that GitHub needs in front of a ``|`` in the code of a table."""
    if not line.startswith("|"):
        return line
    return _CODE.sub(lambda code: code[0].replace(r"\|", "|"), line)


def _target(link: str, folder: str, name: str, repository: str) -> str:
    """Return the link as the site has it."""
    if link.startswith(("https://", "http://", "mailto:", "#")):
        return link
    path, mark, anchor = link.partition("#")
    from_root = normpath(folder + path)
    up = "../" * name.count("/")
    for page, source in ROOT_PAGES.items():
        if from_root == source:
            return f"{up}{page}{mark}{anchor}"
    if from_root.startswith(("docs/", PICTURES)):
        return f"{up}{from_root.removeprefix('docs/')}{mark}{anchor}"
    target = ROOT / from_root
    if not target.exists():
        raise PluginError(f"{name}: the link {link} leads to nothing")
    kind = "tree" if target.is_dir() else "blob"
    return f"{repository}/{kind}/main/{from_root}{mark}{anchor}"


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Keep the pages in their order, for on_env."""
    config.extra["pages"] = nav.pages


def on_env(env: Environment, config: MkDocsConfig, files: Files) -> None:
    """Add llms.txt and llms-full.txt, and the addresses of names of other projects."""
    for address, names in INVENTORY.items():
        for name, path in names.items():
            config.plugins["autorefs"].register_url(name, address + path)  # type: ignore[attr-defined]
    pages = [page for page in config.extra["pages"] if page.markdown]
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    listed = "\n".join(f"- [{page.title}]({_address(page, config)})" for page in pages)
    full = "\n".join(
        f"\n# {page.title}\n\n{_address(page, config)}\n\n{_DIRECTIVE.sub(_docstrings, page.markdown)}"
        for page in pages
    )
    for name, text in ("llms.txt", f"\n## Pages\n\n{listed}\n"), ("llms-full.txt", full):
        files.append(File.generated(config, name, content=f"{head}{text}"))


def _address(page: Page, config: MkDocsConfig) -> str:
    return f"{config.site_url or ''}{page.url}"


def _docstrings(directive: re.Match[str]) -> str:
    """Return the text of an object of the reference and of the members that its page names."""
    found = pydoc.locate(directive[1])
    options = (yaml.safe_load(directive[2]) or {}).get("options", {})
    own = [name for name in vars(found) if name[0] != "_"] if inspect.isclass(found) else []
    described = [(directive[1], found)]
    described += [(name, getattr(found, name)) for name in options.get("members", own) or []]
    return "\n".join(
        f"## {name}\n\n{inspect.getdoc(value)}\n"
        for name, value in described
        if callable(value) or isinstance(value, property)
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the references in docstrings, ``:class:`X```, as links, and the versions of names."""
    # A search is a question, which a guide answers better than the reference.
    page.meta.setdefault("search", {})["boost"] = 0.2 if page.url.startswith("api/") else 1
    html = html.replace("::</p>\n<div", ":</p>\n<div")  # of a docstring: code comes next
    return _API_HEADING.sub(_with_since, _ROLE.sub(_linked, html))


def _linked(role: re.Match[str]) -> str:
    """Return a reference as a link; a method without its class belongs to LockingSession."""
    method = f"sa_doclock.LockingSession.{role[1]}"
    name = method if method in SINCE else f"sa_doclock.{role[1]}"
    return (
        f'<autoref identifier="{name}" optional><code>{role[1].rpartition(".")[2]}</code></autoref>'
    )


def _with_since(heading: re.Match[str]) -> str:
    name = _OF_A_MODULE.sub(r"sa_doclock.\1", heading["name"])
    # The types that functions return are described by their modules, and known by their names.
    version = SINCE.get(name) or SINCE.get(f"sa_doclock.{name.rpartition('.')[2]}")
    if version is None:
        return heading[0]
    return f'{heading["start"]}<span class="doc-since">since {version}</span> {heading["end"]}'
