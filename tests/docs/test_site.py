"""The site builds strictly, contains every public name, and shows in a browser without an error."""

from __future__ import annotations

import inspect
import json
import operator
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import pytest

import sa_doclock
from sa_doclock.errors import DOCS
from tests.docs.browser import build, chromium, served
from tests.docs.pages import ROOT, text_of
from tests.docs.reference import described, paths, public_name, public_names, since

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

METHODS = [name for name in public_names() if name.startswith("LockingSession.")]

# Measures of a page: its excess width over the screen, pictures, links, the size of its words.
LOOK = """() => ({
    wider: document.documentElement.scrollWidth - window.innerWidth,
    broken: [...document.images].filter(image => !image.naturalWidth).map(image => image.src),
    links: [...document.querySelectorAll('a[href]')].map(link => link.href),
    smallest: Math.min(...[...document.querySelectorAll('article p, article li')]
        .map(shown => parseFloat(getComputedStyle(shown).fontSize)), 99),
})"""


# Code that does not fit in its frame.
CUT_OFF = """() => [...document.querySelectorAll('article pre > code')]
    .filter(code => code.scrollWidth > code.clientWidth).map(code => code.innerText)"""


# Tables wider than their column, which readers have to scroll sideways.
WIDE_TABLES = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')]
    .filter(frame => frame.scrollWidth > frame.clientWidth).map(frame => frame.innerText)"""


# Repeated: the page listens only after its script and the index load.
ASK_AND_COUNT = """() => {
    const input = document.querySelector('input.md-search__input');
    input.focus();
    input.value = 'SkipLocked';
    input.dispatchEvent(new Event('keyup', {bubbles: true}));
    return document.querySelectorAll('.md-search-result__item').length > 2;
}"""


# Searches, and the recipe that answers each.
RECIPES = {
    "gapless": "gapless-numbers",
    "stock": "stock",
    "reservation": "stock",
    "outbox": "outbox",
    "idempotency": "idempotency-key",
    "edit screen": "edit-screen",
}


#: Searches, and the pages of which at least one must be among the first three results.
QUESTIONS = {
    "database is locked": ["sqlite.html"],
    "advisory lock": ["named-locks.html"],
    "optimistic locking": ["versions.html"],
    "race condition": ["explore.html", "audit.html"],
    "stale data": ["versions.html"],
    "take over": ["check-outs.html"],
    "read replica": ["recipes/read-replicas.html"],
    "retry": ["retrying.html"],
    "deadlock": ["retrying.html", "hangs.html", "errors.html"],
    "timeout": ["timeouts.html"],
    "queue": ["claiming.html"],
    "fastapi": ["frameworks/fastapi.html"],
    "celery": ["frameworks/workers.html"],
    "fork": ["forked-processes.html"],
    "multi-tenant": ["recipes/tenants.html"],
}

#: The pages of the first three results, once there are results.
FIRST_THREE = """words => {
    const input = document.querySelector('input.md-search__input');
    input.focus();
    input.value = words;
    input.dispatchEvent(new Event('keyup', {bubbles: true}));
    const items = [...document.querySelectorAll('.md-search-result__item')].slice(0, 3);
    return items.length && items.map(item => item.querySelector('a').pathname);
}"""


# Whether a recipe is among the first results.
ASK_FOR_A_RECIPE = """([words, recipe]) => {
    const input = document.querySelector('input.md-search__input');
    input.focus();
    input.value = words;
    input.dispatchEvent(new Event('keyup', {bubbles: true}));
    return [...document.querySelectorAll('.md-search-result__link')]
        .some(link => link.pathname.endsWith(`/recipes/${recipe}.html`));
}"""


class _Ids(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids |= {value for name, value in attrs if name in ("id", "name") and value}


def test_every_public_name_is_described_and_has_its_version() -> None:
    """A new name belongs in docs/site/since.json, and on a page of docs/api."""
    names, pages = public_names(), described()
    assert sorted(names) == sorted(since())
    missing = [n for n in names if n not in pages and not n.startswith("LockingSession.")]
    assert missing == []
    listed = re.findall(r"^ +- (\w+)$", text_of("docs/api/session.md"), re.MULTILINE)
    methods = [n.partition(".")[2] for n in names if n.startswith("LockingSession.")]
    assert sorted(listed) == sorted(methods)


def test_the_site_names_the_repository_as_the_package_does() -> None:
    config, package = ((ROOT / name).read_text() for name in ("mkdocs.yml", "pyproject.toml"))
    (repository,) = re.findall(r"repository: &repository (\S+)", config)
    assert f'Source = "{repository}"' in package


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    with served(site) as found:
        yield found


def pages_of(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_nothing_comes_from_another_server(site: Path) -> None:
    for page in pages_of(site):
        text = (site / page).read_text(encoding="utf-8")
        text = re.sub(r'<link rel="canonical"[^>]*>', "", text)  # an address, not loaded
        loaded = re.findall(r'<(?:script|img|link|iframe|source)[^>]+(?:src|href)="([^"]+)"', text)
        assert [one for one in loaded if re.match(r"(https?:)?//", one)] == [], page


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_reference_has_each_name_with_its_version(site: Path) -> None:
    html = "".join(path.read_text(encoding="utf-8") for path in site.glob("api/*.html"))
    assert "doc-symbol-module" not in html  # a module in place of the function with its name
    found = dict(
        re.findall(
            r'<h\d id="sa_doclock\.([\w.]+)" class="doc doc-heading">'
            r'(?:(?!</h\d>).)*?class="doc-since">since ([\d.]+)<',
            html,
            re.DOTALL,
        )
    )
    ours = {path: since()[public_name(path)] for path in (*paths(), *METHODS)}
    assert {path: found.get(path) for path in ours} == ours


@pytest.mark.slow
@pytest.mark.exhaustive
def test_names_of_sqlalchemy_and_python_are_links(site: Path) -> None:
    html = "".join(path.read_text(encoding="utf-8") for path in site.glob("api/*.html"))
    for name, address in {
        "sqlalchemy.orm.Session": "orm/session_api.html#sqlalchemy.orm.Session",
        "sqlalchemy.Select": "core/selectable.html#sqlalchemy.sql.expression.Select",
    }.items():
        link = f'title="{name}" href="https://docs.sqlalchemy.org/en/21/{address}"'
        assert re.search(rf"<a [^>]*{re.escape(link)}", html), name
    # A name without a link is a span with its title: add it to docs/site/inventory.json.
    unlinked = set(re.findall(r'<span title="([\w.]+)"', html))
    assert {
        n for n in unlinked if not n.startswith(("sa_doclock.", "doclock_audit.", "opentelemetry."))
    } == set()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_llms_txt_lists_the_pages_and_llms_full_txt_has_their_text(site: Path) -> None:
    listed = re.findall(
        rf"\({re.escape(DOCS)}/(.*)\)$", (site / "llms.txt").read_text(), re.MULTILINE
    )
    pages = [page for page in pages_of(site) if page != "404.html"]
    assert sorted(listed) == pages
    assert listed[:2] == ["index.html", "tutorial.html"]  # in the order of the navigation
    full = (site / "llms-full.txt").read_text()
    assert [page for page in pages if f"\n{DOCS}/{page}\n" not in full] == []
    assert "\n::: " not in full  # replaced by the docstring
    for name in METHODS:
        docstring = inspect.getdoc(operator.attrgetter(name)(sa_doclock)) or ""
        assert docstring in full, name


#: In a docstring: the start of its list of parameters, results and errors; a reference.
_FIELD = re.compile(r"^:\w[^`:]*:", re.MULTILINE)
_REFERENCE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


class _Words(HTMLParser):
    """The words of each object of a page, in the order in which a browser shows them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.of: dict[str, list[str]] = {}
        self._found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "doc-heading" in (given.get("class") or ""):
            self._found = self.of.setdefault(given.get("id") or "", [])

    def handle_data(self, data: str) -> None:
        self._found += re.findall(r"\w+", data)


def words_of(text: str) -> list[str]:
    """Return the words of a docstring, without its markup."""
    return re.findall(r"\w+", _REFERENCE.sub(r"\1", text))


def is_part_of(words: list[str], shown: list[str]) -> bool:
    """Return whether a page shows these words in sequence."""
    return f" {' '.join(words)} " in f" {' '.join(shown)} "


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", METHODS)
def test_a_docstring_is_shown_in_its_order(site: Path, name: str) -> None:
    shown = _Words((site / "api/session.html").read_text(encoding="utf-8")).of[f"sa_doclock.{name}"]
    docstring = inspect.getdoc(operator.attrgetter(name)(sa_doclock)) or ""
    text, *fields = _FIELD.split(docstring)
    assert is_part_of(words_of(text), shown), name
    for field in fields:
        assert is_part_of(words_of(field), shown), name


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1200)  # sixty pages; a busy machine takes minutes
def test_a_browser_shows_every_page(site: Path, url: str, tmp_path: Path) -> None:
    said: list[str] = []
    links: dict[str, str] = {}
    with chromium(tmp_path) as context:
        page = context.pages[0]
        page.on("console", lambda message: said.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
        page.on("requestfailed", lambda request: said.extend(_failed(request)))
        page.on("response", lambda answer: said.extend(_refused(answer)))
        page.on("request", lambda request: said.extend(_foreign(request.url, url)))
        for size in (DESKTOP, PHONE):
            page.set_viewport_size(size)
            for name in [name for name in pages_of(site) if name != "404.html"]:  # of the real host
                page.goto(url + name)
                seen: dict[str, Any] = page.evaluate(LOOK)
                assert (name, size["width"], seen["wider"]) == (name, size["width"], 0)
                assert (name, seen["broken"]) == (name, [])
                assert (name, size["width"], page.evaluate(CUT_OFF)) == (name, size["width"], [])
                assert seen["smallest"] >= 12, name
                links.update(dict.fromkeys(seen["links"], name))
    assert said == []
    broken = {link: name for link, name in links.items() if not _leads_somewhere(link, url, site)}
    assert broken == {}


def _failed(request: Any) -> list[str]:
    aborted = request.failure == "net::ERR_ABORTED"  # by moving to the next page
    return [] if aborted else [f"{request.failure}: {request.url}"]


def _refused(answer: Any) -> list[str]:
    return [f"{answer.status}: {answer.url}"] if answer.status >= 400 else []


def _foreign(address: str, url: str) -> list[str]:
    return [] if address.startswith((url, "data:", "blob:")) else [f"fetched: {address}"]


def _leads_somewhere(link: str, url: str, site: Path) -> bool:
    if not link.startswith(url):
        return link.startswith("https://")
    address, anchor = urldefrag(link)
    path = site / unquote(address.removeprefix(url))
    path = path / "index.html" if path.is_dir() else path
    if not path.is_file():
        return False
    if not anchor or path.suffix != ".html":
        return True
    return unquote(anchor) in _Ids(path.read_text(encoding="utf-8")).ids


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["index.html", "lock-options.html"])
def test_its_tables_fit_the_screen(url: str, tmp_path: Path, name: str, size: Any) -> None:
    with chromium(tmp_path, viewport=size) as context:
        page = context.pages[0]
        page.goto(urljoin(url, name))
        page.wait_for_selector(".md-typeset__scrollwrap")
        assert page.evaluate(WIDE_TABLES) == []


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_search_finds_a_page(url: str, tmp_path: Path) -> None:
    with chromium(tmp_path, viewport=DESKTOP) as context:
        page = context.pages[0]
        page.goto(urljoin(url, "index.html"))
        page.locator("input.md-search__input").click()
        page.wait_for_function(ASK_AND_COUNT, polling=1000)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("words", "recipe"), RECIPES.items())
def test_the_index_of_the_search_has_the_words_of_a_recipe(
    site: Path, words: str, recipe: str
) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found = {
        entry["location"].partition("#")[0]
        for entry in index["docs"]
        if words in f"{entry['title']} {entry['text']}".lower()
    }
    assert f"recipes/{recipe}.html" in found


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_search_finds_each_recipe(url: str, tmp_path: Path) -> None:
    with chromium(tmp_path, viewport=DESKTOP) as context:
        page = context.pages[0]
        for asked in RECIPES.items():
            page.goto(urljoin(url, "index.html"))  # drops earlier results
            page.wait_for_function(ASK_FOR_A_RECIPE, arg=[*asked], polling=1000, timeout=30_000)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_search_finds_the_page_of_each_question(url: str, tmp_path: Path) -> None:
    missed = {}
    with chromium(tmp_path, viewport=DESKTOP) as context:
        page = context.pages[0]
        for words, pages in QUESTIONS.items():
            page.goto(urljoin(url, "index.html"))  # drops earlier results
            options: Any = {"arg": words, "polling": 500, "timeout": 30_000}
            found = page.wait_for_function(FIRST_THREE, **options).json_value()
            if not any(path.endswith(f"/{name}") for path in found for name in pages):
                missed[words] = found
    assert not missed, [*missed.items()]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("wanted", "shown"), [("light", "default"), ("dark", "slate")])
def test_it_has_the_colours_of_the_system(
    url: str, tmp_path: Path, wanted: str, shown: str
) -> None:
    with chromium(tmp_path, color_scheme=wanted) as context:
        page = context.pages[0]
        page.goto(urljoin(url, "index.html"))
        page.wait_for_selector(f"body[data-md-color-scheme={shown}]")
