"""The core needs no feature: a copy without them locks documents; a LockingSession needs few of them."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sa_doclock

PACKAGE = Path(sa_doclock.__file__).parent
#: The core, the databases, and the vocabulary that users import too.
CORE = (
    "core",
    "dialects",
    "caller.py",
    "checkout_info.py",
    "errors.py",
    "events.py",
    "functions.py",
    "interruptions.py",
    "keys.py",
    "options.py",
    "pool",
    "sqlalchemy_internals.py",
    "wait_info.py",
)
#: What most LockingSessions have: the family, named locks, and what refuses ``checkout=``.
OF_EVERY_SESSION = (
    "__init__.py",
    "install.py",
    "named_locks.py",
)
FAMILY = ("adoption", "dml_internals.py", "guard", "kinds.py", "versions.py")
SESSION = ("session", *FAMILY, *(f"features/{name}" for name in OF_EVERY_SESSION))
SCRIPT = Path(__file__).with_name("core_alone_script.py")


@pytest.mark.parametrize(
    ("kept", "session"),
    [(CORE, "core.session.CoreSession"), ((*CORE, *SESSION), "session.LockingSession")],
    ids=["core", "session"],
)
def test_a_copy_without_features_and_tools_locks_documents(
    tmp_path: Path, kept: tuple[str, ...], session: str
) -> None:
    copy = tmp_path / "sa_doclock"
    (copy / "features").mkdir(parents=True)
    (copy / "__init__.py").touch()  # the names for users, which import all that there is
    for name in kept:
        source = PACKAGE / name
        copied = shutil.copytree if source.is_dir() else shutil.copyfile
        copied(source, copy / name)
    script = shutil.copyfile(SCRIPT, tmp_path / SCRIPT.name)
    command = [sys.executable, str(script), session]
    run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def test_the_core_imports_no_feature() -> None:
    found = [
        f"{path.relative_to(PACKAGE).as_posix()}: {node.module}"
        for path in sorted((PACKAGE / "core").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and {"features", "guard", "adoption", "versions"} & {*(node.module or "").split(".")}
    ]
    assert found == []
