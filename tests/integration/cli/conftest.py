"""The command line as a user starts it, in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
Process = subprocess.CompletedProcess[str]


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the environment variable with the command line's database."""
    monkeypatch.delenv("SA_DOCLOCK_URL", raising=False)


@pytest.fixture
def sa_doclock() -> Callable[..., Process]:
    """Run a command to its end; ``environment`` extends the environment of the tests."""

    def run(*words: str, **environment: str) -> Process:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "sa_doclock", *words],
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=ROOT,
            env={**os.environ, **environment},
            check=False,
            timeout=120,
        )

    return run
