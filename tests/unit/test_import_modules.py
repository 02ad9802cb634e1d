"""The modules that ``import sa_doclock`` loads, counted: a time would depend on the machine."""

from __future__ import annotations

import json

import pytest

from tests.support.fresh_process import FreshProcesses

#: A module more costs each start of a program some 0.3 ms.
MODULES = 158

LATE = (
    "sa_doclock.asyncio",
    "sa_doclock.claims",
    "sa_doclock.features.batch",
    "sa_doclock.features.checkouts",
    "sa_doclock.features.gate",
    "sa_doclock.features.hold_limit",
    "sa_doclock.features.on_commit",
    "sa_doclock.features.pipeline",
    "sa_doclock.features.routing",
    "sa_doclock.testing",
    "sa_doclock.tools",
)


@pytest.fixture
def loaded(fresh: FreshProcesses) -> list[str]:
    result = fresh.run("""if True:
        import json, sys
        import sqlalchemy.orm
        before = {*sys.modules}
        import sa_doclock
        print(json.dumps(sorted(sys.modules.keys() - before)))
    """)
    assert result.stderr == ""
    modules: list[str] = json.loads(result.stdout)
    return modules


def test_the_import_loads_few_modules(loaded: list[str]) -> None:
    assert len([name for name in loaded if name.startswith("sa_doclock")]) <= MODULES


def test_what_a_session_may_never_use_is_loaded_at_its_first_use(loaded: list[str]) -> None:
    assert [name for name in loaded if name.startswith(LATE)] == []
