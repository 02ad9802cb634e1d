"""A script of benchmarks/, run in this process with as little as can be measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lab.figures import Findings

Run = Callable[[str, str, str], Findings]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script on one database; give back what is in its JSON."""

    def run_script(name: str, database: str, url: str) -> Findings:
        path = tmp_path / f"{name}.json"
        where = ["--databases", database, "--url", f"{database}={url}"]
        pictures = ["--plot", str(tmp_path / "pictures")]
        module = importlib.import_module(f"benchmarks.{name}")
        module.main(["--tiny", *where, "--json", str(path), *pictures])
        return Findings.read(path)

    return run_script
