"""Runs Python in a folder of its own, as a reader of the pages does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT
from tests.support.own_code import PACKAGE


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in the folder, with the sa_doclock that the tests have imported."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    from_sources = PACKAGE.parent == ROOT
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **({"PYTHONPATH": paths} if from_sources else {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
