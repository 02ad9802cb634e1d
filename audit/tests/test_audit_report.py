"""The audit's report: unique findings, callers and tests, paths, cures, stories, the HTML page."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from doclock_audit import cures
from doclock_audit.findings import CODES, AuditFinding, each_once, table_of
from doclock_audit.html import html_of
from doclock_audit.paths import Paths
from doclock_audit.places import is_of_tests, packages_in
from doclock_audit.stories import STORIES, story_of

MODELS = """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

def models():
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        total: Mapped[int] = mapped_column(default=0)

    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Order(id=1))
        session.commit()
    return engine, Order
"""
STORAGE = """
from sqlalchemy.orm import Session

def put(engine, entity):
    with Session(engine) as session:
        order = session.get(entity, 1)
        order.total += 1
        session.commit()
"""
SERVICE = """
import storage

def pay(engine, entity):
    storage.put(engine, entity)
"""
TESTS = """
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
import service

@pytest.fixture
def shop():
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        total: Mapped[int] = mapped_column(default=0)

    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Order(id=1))
        session.commit()
    yield engine, Order
    engine.dispose()

def test_pay(shop):
    service.pay(*shop)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_sa_doclock")
    pytester.makepyfile(storage=STORAGE, service=SERVICE)
    return pytester


def lines_of(result: pytest.RunResult, *starts: str) -> list[str]:
    return [line.strip() for line in result.outlines if line.strip().startswith(starts)]


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])
def test_a_finding_is_one_whatever_the_fixtures_define(
    run: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    """The finding also names its caller, above the storage layer, and the tests that ran it."""
    run.makepyfile(test_one=TESTS, test_other=f"{TESTS}\n")
    result = run.runpytest_subprocess(*workers, "--doclock-audit=found.json")
    result.assert_outcomes(passed=2)
    (row,) = lines_of(result, "error ")
    assert row.split()[:4] == ["error", "lost-update", "2", "storage.py:5,"]
    called, *_ = lines_of(result, "called from")  # a long hold may follow on a busy machine
    assert called.startswith("called from service.py:4, test_")
    assert called.endswith(".py:25 (test)")
    (ran,) = lines_of(result, "in test_")
    assert {"test_one.py::test_pay", "test_other.py::test_pay"} == set(ran[3:].split(", "))
    (found,) = json.loads((run.path / "found.json").read_text())
    assert found["sites"] == ["storage.py:5", "storage.py:6", "storage.py:7"]
    assert str(run.path) not in json.dumps(found)
    assert found["in_tests"] is False
    assert found["story"][0][1].endswith("storage.py:5")


def test_lines_of_tests_are_marked(run: pytest.Pytester) -> None:
    run.makepyfile(form=STORAGE.replace("+= 1", "= 5"))
    run.makepyfile(
        test_seed=TESTS
        + """
def test_own(shop):
    engine, Order = shop
    with Session(engine) as session:
        order = session.get(Order, 1)
        order.total += 1
        session.commit()

def test_form(shop):
    import form
    form.put(*shop)
"""
    )
    result = run.runpytest_subprocess("--doclock-audit")
    (error,) = lines_of(result, "error ")
    assert "(test)" not in error
    first, second = lines_of(result, "warning ")
    assert "(test)" not in first  # the program's own lines come first
    assert second.count("test_seed.py:") == second.count("(test)") == 3


@pytest.mark.parametrize(
    ("arguments", "source", "seen"),
    [((), None, False), (("--doclock-audit-package=billing",), None, True), ((), "src", True)],
    ids=["neither", "named", "guessed"],
)
def test_an_installed_package_is_the_program_if_named_or_if_its_source_is_here(
    run: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    source: str | None,
    seen: bool,
) -> None:
    base = run.path / "user"
    monkeypatch.setenv("PYTHONUSERBASE", str(base))
    ask = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]
    folder = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    (folder / "billing").mkdir(parents=True)
    (folder / "billing" / "__init__.py").write_text("")
    (folder / "billing" / "store.py").write_text(STORAGE.lstrip())
    monkeypatch.setenv("PYTHONPATH", str(folder))
    if source is not None:
        (run.path / source / "billing").mkdir(parents=True)
        (run.path / source / "billing" / "__init__.py").write_text("")
    run.makepyfile(
        service=SERVICE.replace("import storage", "from billing import store as storage")
    )
    run.makepyfile(test_one=TESTS)
    result = run.runpytest_subprocess("--doclock-audit", *arguments)
    result.assert_outcomes(passed=1)
    (row, *_) = lines_of(result, "error ", "warning ")
    assert ("billing/store.py:5, billing/store.py:6, billing/store.py:7" in row) == seen, row


def test_the_packages_whose_source_is_here(tmp_path: Path) -> None:
    for name in ("shop", "tests", "src/billing", "docs/api"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    assert packages_in(tmp_path) == {"shop", "billing"}


def test_what_a_file_of_tests_is() -> None:
    of_tests = ["tests/seed.py", "conftest.py", "shop/test/x.py", "shop/test_x.py", "x_test.py"]
    of_program = ["shop/testament.py", "shop/contest.py", "latest.py", ""]
    assert [is_of_tests(one) for one in of_tests + of_program] == [True] * 5 + [False] * 4


def finding(**changes: object) -> AuditFinding:
    facts: dict[str, object] = {
        "code": "lost-update",
        "severity": "error",
        "certain": True,
        "count": 1,
        "message": "a/x.py:1 and a/x.py:12",
        "sites": ("a/x.py:1", "a/x.py:12"),
        "cure": "lock",
    }
    return AuditFinding(**{**facts, **changes})  # type: ignore[arg-type]


def test_findings_with_one_message_are_one() -> None:
    other_flush = finding(sites=("a/x.py:1", "a/x.py:12", "a/test.py:3"), count=4)
    (one,) = each_once([finding(), other_flush])
    assert one.count == 5
    possible = finding(message="may be", certain=False, severity="warning")
    assert each_once([possible, finding()]) == [finding()]
    assert len(each_once([finding(), finding(message="of another class")])) == 2


def test_a_place_is_shown_whole_where_another_begins_with_it(tmp_path: Path) -> None:
    sites = tuple(f"{tmp_path}/{one}" for one in ("tests/x.py:1", "tests/x.py:12"))
    text = Paths(tmp_path).text(" and ".join((*sites, f"{sites[1]}3")), sites)
    assert text == f"tests/x.py:1 (test) and tests/x.py:12 (test) and {sites[1]}3"


def test_every_code_has_a_story() -> None:
    assert STORIES.keys() == CODES.keys()
    for code in CODES:
        for sites in ((), ("a.py:1",), ("a.py:1", "b.py:2", "c.py:3", "d.py:4")):
            steps = story_of(code, sites)
            assert {who for who, _ in steps} == {"first", "second"}
            assert not any("{" in text or text.endswith(":") for _, text in steps)


def test_the_story_is_told_once_for_each_code(tmp_path: Path) -> None:
    text = "\n".join(table_of([finding(), finding(message="2")], Paths(tmp_path)))
    assert text.count("the first change is lost, without an error") == 1


CURES: Mapping[str, Callable[[], str]] = {
    "lost-update": lambda: cures.lost_update("Order", "total", "x.py:1", computed=True),
    "replaced": lambda: cures.lost_update("Order", "total", "x.py:1", computed=False),
    "detail": lambda: cures.detail_without_header("Order", "lines", "x.py:1", is_mapped=False),
    "rows": lambda: cures.lock_order(["Order", "Order"]),
    "classes": lambda: cures.lock_order(["Order", "Customer"]),
    "stale": lambda: cures.stale_after_lock("Order", "x.py:1"),
    "effect": cures.lock_without_effect,
    "hold": lambda: cures.long_hold("x.py:1"),
    "idle": lambda: cures.idle_transaction("x.py:1"),
    "insert": lambda: cures.check_then_insert("User", "site_id, email"),
    "only": lambda: cures.check_then_insert("Settings", ""),
    "capacity": lambda: cures.capacity("x.py:1"),
    "number": lambda: cures.max_plus_one("x.py:1", "year, number"),
}
PLAIN = {
    "lost-update": ("with_for_update=True", "values(total=Order.total + 1)", "version_id_col"),
    "replaced": ("with_for_update=True", "version_id_col"),
    "detail": ("with_for_update=True",),
    "rows": (".order_by(Order.id).with_for_update()",),
    "classes": ("in one order everywhere: Order, Customer",),
    "stale": ("populate_existing=True",),
    "effect": ("BEGIN IMMEDIATE", "UPDLOCK"),
    "hold": ("after session.commit()",),
    "idle": ("session.commit() or session.rollback()",),
    "insert": ('UniqueConstraint("site_id", "email")', "IntegrityError"),
    "only": ("fixed primary key", "IntegrityError"),
    "capacity": ("with_for_update()",),
    "number": ("with_for_update()", 'UniqueConstraint("year", "number")'),
}


@pytest.mark.parametrize("kind", CURES)
def test_a_cure_is_first_one_of_plain_sqlalchemy(kind: str) -> None:
    plain, ours, _ = CURES[kind]().partition("With sa_doclock: ")
    assert ours
    assert all(one in plain for one in PLAIN[kind])
    assert not any(
        one in plain for one in ("LockOptions", "_entity", "LockingSession", "@document")
    )


def test_each_cure_is_tested() -> None:
    functions = [
        one for name, one in inspect.getmembers(cures, inspect.isfunction) if name[0] != "_"
    ]
    assert len(functions) == 10


class Tags(HTMLParser):
    """Collects the tags of a page, its attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links.update(str(value) for name, value in attrs if name == "href")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_from_data_is_markup_on_the_page(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script><img src=x onerror=y>&amp;\x1b[31m\ud800'
    place = f'{tmp_path}/<b onclick="x">.py:3'
    one = finding(
        code='x" onload="x',
        severity='error" style="x',
        message=f"{evil} {place}",
        cure=evil,
        sites=(place,),
        callers=(place,),
        tests=(evil,),
    )
    page = html_of([one, finding()], ["1 errors", evil], Paths(tmp_path))
    page.encode()  # the page contains nothing that cannot be encoded
    tags = Tags()
    tags.feed(page)
    assert not tags.tags & {"script", "img", "b", "link", "iframe", "object"}
    assert not {one for one in tags.attributes if one.startswith("on") or one in ("src", "style")}
    assert all(one.startswith(("#f", "https://")) for one in tags.links)
    assert tags.text.count('alert("x")') == 4
    assert "\x1b" not in page


def test_the_page_of_a_run(run: pytest.Pytester) -> None:
    run.makepyfile(test_one=TESTS)
    result = run.runpytest_subprocess("--doclock-audit-html=found.html", "--doclock-audit-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["written to found.html"])
    tags = Tags()
    tags.feed((run.path / "found.html").read_text())
    assert "storage.py:6 order.total += 1" in " ".join(tags.text.split())
    assert "test_one.py::test_pay" in tags.text
    assert "the first change is lost" in tags.text


@pytest.mark.parametrize("option", ["--doclock-audit=no/x.json", "--doclock-audit-html=."])
def test_a_file_that_cannot_be_written_is_told_before_the_run(
    run: pytest.Pytester, option: str
) -> None:
    run.makepyfile(test_one=TESTS)
    result = run.runpytest_subprocess(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cannot be written: *"])


SERVER = f"""
{MODELS}
import storage
storage.put(*models())
import os, threading
os.chdir("/")
try:
    print("ready", flush=True)
    threading.Event().wait()
finally:
    print("stopped", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "storage.py").write_text(STORAGE)
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sa_doclock", "audit", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509
    )


def heed_ctrl_c() -> None:
    """Let SIGINT interrupt: background processes of a shell without job control ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_server_with_its_report(folder: Path, number: int, status: int) -> None:
    with start(folder, "--html", "found.html", "--", "server.py") as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        os.kill(server.pid, number)
        out, errors = server.communicate(timeout=60)
    assert server.returncode == status
    assert out.startswith("stopped\nseverity ")
    assert "1 error, 0 warnings" in out
    assert errors == "written to found.html\n"
    assert (folder / "found.html").is_file()


def test_a_server_that_handles_sigterm_itself_is_let(folder: Path) -> None:
    own = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    (folder / "server.py").write_text(own + SERVER)
    with start(folder, "--", "server.py") as server:
        assert server.stdout is not None
        server.stdout.readline()
        os.kill(server.pid, signal.SIGTERM)
        out, _ = server.communicate(timeout=60)
    assert server.returncode == 2  # the status for errors, because the program ended with 0
    assert "1 error, 0 warnings" in out


@pytest.mark.parametrize("option", [("--sarif", "no/x.sarif"), ("--html", ".")])
def test_the_command_tells_before_the_run_what_cannot_be_written(
    folder: Path, option: tuple[str, str]
) -> None:
    with start(folder, *option, "--", "server.py") as server:
        out, errors = server.communicate(timeout=60)
    assert (server.returncode, out) == (2, "")
    assert errors.startswith(f"sa-doclock: {option[1]} cannot be written: ")


def test_a_command_of_an_environment_that_is_not_active(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with start(folder, "--", "pytest", "--version") as program:
        out, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert out.startswith("pytest ")


def test_pytest_as_the_program_with_warnings_as_errors(folder: Path) -> None:
    """pytest rewrites an installed plugin's package, which is already imported."""
    (folder / "conftest.py").write_text(
        "import pytest\npytest.register_assert_rewrite('sa_doclock')\n"
    )
    (folder / "service.py").write_text(SERVICE)
    (folder / "test_one.py").write_text(TESTS)
    pytest_of = ("-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error")
    with start(folder, "--", *pytest_of) as program:
        out, errors = program.communicate(timeout=60)
    assert program.returncode == 2, out + errors
    assert "1 passed" in out
    assert "in test_one.py::test_pay" in out
