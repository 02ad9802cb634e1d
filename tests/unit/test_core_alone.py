"""The core needs no feature but those of every session: a copy without the others locks documents."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import sa_doclock

PACKAGE = Path(sa_doclock.__file__).parent
#: The core, the databases, and the vocabulary that users import too.
KEPT = ("core", "dialects", "checkout_info.py", "errors.py", "events.py", "options.py")
#: What each session has: the guard, the versions of documents, and what refuses ``checkout=``.
OF_EVERY_SESSION = ("__init__.py", "install.py", "guard", "versions.py", "no_checkouts.py")
SCRIPT = Path(__file__).with_name("core_alone_script.py")


def test_the_core_locks_documents_without_features_and_tools(tmp_path: Path) -> None:
    copy = tmp_path / "sa_doclock"
    (copy / "features").mkdir(parents=True)
    (copy / "__init__.py").touch()  # the names for users, which import all that there is
    for name in (*KEPT, *(f"features/{name}" for name in OF_EVERY_SESSION)):
        source = PACKAGE / name
        copied = shutil.copytree if source.is_dir() else shutil.copyfile
        copied(source, copy / name)
    script = shutil.copyfile(SCRIPT, tmp_path / SCRIPT.name)
    command = [sys.executable, str(script)]
    run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def test_few_imports_lead_from_the_core_to_features() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {node.module}"
        for path in sorted((PACKAGE / "core").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and "features" in (node.module or "").split(".")
    }
    assert found == {
        "core/session/checkout_methods.py: features.checkouts",
        "core/session/create_methods.py: features.creation",
        "core/session/locking_session.py: features",
        "core/session/locking_session.py: features.gate",  # for types
        "core/session/locking_session.py: features.on_commit",
    }
