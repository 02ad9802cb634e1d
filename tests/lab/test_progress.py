"""Waits report their reason: in make, in downloads, and in a test run that prints no result."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.running import interpreter, memory, progress, silence
from lab.running.interpreter import FITS, answer
from lab.running.memory import keep_temporary_files_in_memory
from lab.running.silence import NoSilence
from lab.servers.downloads import Download, downloading

SOON = 0.01  # seconds


class Terminal:
    """Keeps the printed lines, and reports when there are enough."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()

    def say(self, line: str) -> None:
        with self._more:
            self.lines.append(line.strip())
            self._more.notify_all()

    def wait_for(self, words: str) -> str:
        with self._more:
            assert self._more.wait_for(lambda: self._with(words), timeout=20), self.lines
            return self._with(words)[0]

    def _with(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    for module in (progress, silence):
        monkeypatch.setattr(module, "say", found.say)
    monkeypatch.setattr("lab.servers.downloads.say", found.say)
    return found


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", progress.__file__, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_command_that_goes_well_is_silent_but_for_the_texts() -> None:
    done = ran("Creating it", "it is large", "--", sys.executable, "-c", "print('noise')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Creating it\nit is large\n")


def test_a_command_that_fails_is_heard() -> None:
    done = ran("Creating it", "--", sys.executable, "-c", "print('why'); raise SystemExit(3)")
    assert done.returncode == 3
    assert done.stderr == "Creating it\nwhy\n\n"


@pytest.mark.parametrize("words", [(), ("text",), ("--", "command"), ("text", "--")])
def test_a_call_without_a_text_or_a_command(words: tuple[str, ...]) -> None:
    assert "usage: progress.py TEXT... -- COMMAND..." in ran(*words).stderr


def test_a_long_command_tells_its_last_line(terminal: Terminal, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    waits = (
        "import pathlib, sys, time\n"
        "print('Collecting SQLAlchemy\\nunfinished', end='', flush=True)\n"
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
    )
    command = [sys.executable, "-c", waits, str(go_on)]
    running = threading.Thread(target=progress.run, args=(["Installing"], command, SOON))
    running.start()
    try:
        assert terminal.wait_for("Collecting").endswith(" s: Collecting SQLAlchemy")
    finally:
        go_on.touch()
        running.join()
    assert terminal.lines[0] == "Installing"


def test_a_download_is_announced_and_its_size_reported(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "lab.servers.downloads.progress",
        lambda state: progress.progress(state, SOON),
    )
    parts = tmp_path / "partial"
    parts.mkdir()
    (parts / "half").write_bytes(bytes(12_000_000))
    one = Download("a server", "Debian sid", 20_400_000, "GPL-2.0")
    other = Download("its libraries", "Debian sid", 1_550_000, "LGPL-2.1")
    with downloading(one, other, folder=tmp_path):
        reported = terminal.wait_for(" s: ")
    assert terminal.lines[:2] == [
        "Downloading a server, from Debian sid: 20 MB, GPL-2.0",
        "Downloading its libraries, from Debian sid: 1.6 MB, LGPL-2.1",
    ]
    assert reported.endswith(" s: a server and its libraries: 12 MB of 22 MB")


def result(nodeid: str, when: str = "call") -> Any:
    return SimpleNamespace(nodeid=nodeid, when=when, outcome="passed")


def test_a_silent_run_tells_what_it_waits_for(terminal: Terminal) -> None:
    watched = NoSilence(alone=False, interval=SOON)
    terminal.wait_for(" s: the tests are collected")
    watched.pytest_runtest_logstart("test_slow")
    watched.pytest_runtest_logstart("test_fast")
    watched.pytest_runtest_logreport(result("test_fast", "setup"))  # pytest prints nothing for it
    watched.pytest_runtest_logreport(result("test_fast"))
    watched.pytest_runtest_logfinish("test_fast")
    terminal.wait_for(" s: 1 tests are over; waiting for test_slow")
    watched.pytest_runtest_logfinish("test_slow")
    terminal.wait_for(" s: 1 tests are over; waiting for the next test")
    watched.pytest_unconfigure()
    assert not watched._watcher.is_alive()


def test_a_run_that_prints_results_is_left_alone(terminal: Terminal) -> None:
    plugin = NoSilence(alone=False, interval=3600)
    plugin.pytest_runtest_logreport(result("test_fast"))
    plugin.pytest_unconfigure()
    assert terminal.lines == []


@pytest.mark.parametrize("alone", [True, False])
def test_no_thread_beside_the_tests_of_its_own_process(alone: bool) -> None:
    plugin = NoSilence(alone=alone)
    plugin.pytest_runtestloop()
    assert plugin._watcher.is_alive() is not alone
    plugin.stop()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_line_of_a_worker_gets_past_the_capture_of_pytest(pytester: pytest.Pytester) -> None:
    root = Path(progress.__file__).parents[2]
    pytester.makeconftest(
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from lab.running.progress import keep_terminal\n"
        "def pytest_configure(): keep_terminal()\n"
    )
    pytester.makepyfile(
        "from lab.running.progress import say\n"
        "def test_it():\n    print('captured')\n    say('Downloading it')\n"
    )
    for workers in ("0", "1"):
        done = pytester.runpytest_subprocess(f"-n{workers}", "-p", "no:randomly")
        done.assert_outcomes(passed=1)
        done.stderr.fnmatch_lines(["Downloading it"])
        assert "captured" not in done.stdout.str() + done.stderr.str()


# --------------------------------------------------------------------------------------------------
# The Python of .venv: kept, rebuilt, or rejected with a clear message.

OLD, OURS, NEW = (3, 9, 18), sys.version_info[:3], (3, 99, 0)


def made_by(folder: Path, version: tuple[int, ...] | None, *, runs: bool = True) -> Path:
    """Create the layout of a virtual environment of this version."""
    (folder / "bin").mkdir(parents=True)
    if version is not None:
        (folder / "pyvenv.cfg").write_text(f"home = /x\nversion = {'.'.join(map(str, version))}\n")
    if runs:
        (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


@pytest.mark.parametrize(
    ("version", "chosen", "runs", "kept"),
    [
        (OURS, False, True, True),
        (OURS, True, True, True),
        (OURS, True, False, False),
        (NEW, False, True, True),
        (NEW, True, True, False),
        (OLD, False, True, False),
        (OLD, True, True, False),
        (None, False, True, True),  # without an existing environment, venv creates it
    ],
)
def test_an_environment_that_does_not_fit_is_made_anew(
    tmp_path: Path, *, version: tuple[int, ...] | None, chosen: bool, runs: bool, kept: bool
) -> None:
    folder = made_by(tmp_path / "venv", version, runs=runs)
    assert answer(folder, chosen) == FITS
    assert folder.exists() is kept


@pytest.mark.parametrize("version", [None, OLD])
def test_an_old_python_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...] | None
) -> None:
    folder = made_by(tmp_path / "venv", version)
    monkeypatch.setattr(sys, "version_info", OLD)
    assert "is Python 3.9.18, and sa_doclock needs 3.10 or newer: name one" in answer(folder, True)
    assert folder.exists()


def test_an_old_python_may_run_make_where_the_environment_is_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_by(tmp_path / "venv", OURS)
    monkeypatch.setattr(sys, "version_info", OLD)
    assert answer(folder, False) == FITS
    assert folder.exists()


def test_make_prints_the_answer(tmp_path: Path) -> None:
    command = [sys.executable, interpreter.__file__, str(tmp_path / "none"), "chosen"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"{FITS}\n"


# --------------------------------------------------------------------------------------------------
# The folder for the temporary files of a run.


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.delenv("TMPDIR")


@pytest.mark.usefixtures("unset")
def test_they_are_in_memory_where_it_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_is_fit", lambda _: True)
    keep_temporary_files_in_memory()
    assert os.environ["TMPDIR"] == "/dev/shm"


@pytest.mark.usefixtures("unset")
def test_they_are_not_where_there_is_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free_memory", lambda: 0)
    keep_temporary_files_in_memory()
    assert "TMPDIR" not in os.environ


@pytest.mark.usefixtures("unset")
def test_tmpdir_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_is_fit", lambda _: True)
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    keep_temporary_files_in_memory()
    assert os.environ["TMPDIR"] == "/elsewhere"
