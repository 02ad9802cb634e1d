"""The folder of the temporary files of a run."""

from __future__ import annotations

import os
import tempfile

import pytest

from lab.running import memory
from lab.running.memory import keep_temporary_files_in_memory


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.delenv("TMPDIR")


def test_they_are_in_memory_where_it_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_is_fit", lambda _: True)
    keep_temporary_files_in_memory()
    assert os.environ["TMPDIR"] == "/dev/shm"


def test_they_are_not_where_there_is_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free_memory", lambda: 0)
    keep_temporary_files_in_memory()
    assert "TMPDIR" not in os.environ


def test_tmpdir_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_is_fit", lambda _: True)
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    keep_temporary_files_in_memory()
    assert os.environ["TMPDIR"] == "/elsewhere"
