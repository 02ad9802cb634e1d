"""The Python of .venv: kept, made anew, or refused in clear words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.running import interpreter
from lab.running.interpreter import FITS, answer

OLD, OURS, NEW = (3, 9, 18), sys.version_info[:3], (3, 99, 0)


def made_by(folder: Path, version: tuple[int, ...] | None, *, runs: bool = True) -> Path:
    """Make what a virtual environment of this version looks like."""
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
        (None, False, True, True),  # one that is not made yet: venv makes it
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
