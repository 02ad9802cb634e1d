"""The reports of a worker: each result and all of a failure are among them, the setup of a test that has passed is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lab.running.reports import FewReports

TESTS = """
    import pytest

    @pytest.fixture
    def broken(request):
        assert request.param != "setup"
        yield
        assert request.param != "teardown"

    def test_passes(): ...

    def test_fails(): assert False

    def test_leaves(): pytest.skip("here")

    @pytest.mark.skip
    def test_skipped(): ...

    @pytest.mark.xfail
    def test_known(): assert False

    @pytest.mark.parametrize("broken", ["setup", "teardown"], indirect=True)
    def test_with(broken): ...
"""


def test_each_result_and_all_of_a_failure_is_reported(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(TESTS)
    run = pytester.inline_run(path, "-p", "no:randomly", plugins=[FewReports()])
    found: dict[str, list[tuple[str, str]]] = {}
    for one in run.getreports("pytest_runtest_logreport"):
        found.setdefault(one.nodeid.partition("::")[2], []).append((one.when, one.outcome))
    setup, teardown = ("setup", "passed"), ("teardown", "passed")
    assert found == {
        "test_passes": [("call", "passed")],
        "test_fails": [setup, ("call", "failed"), teardown],
        "test_leaves": [setup, ("call", "skipped"), teardown],
        "test_skipped": [("setup", "skipped"), teardown],
        "test_known": [setup, ("call", "skipped"), teardown],
        "test_with[setup]": [("setup", "failed"), teardown],
        "test_with[teardown]": [setup, ("call", "passed"), ("teardown", "failed")],
    }
    for begun_or_over in ("logstart", "logfinish"):
        assert len(run.getcalls(f"pytest_runtest_{begun_or_over}")) == 7


@pytest.mark.parametrize(
    ("options", "enough"),
    [
        ({}, True),
        ({"reportchars": "a"}, True),
        ({"durations": 0}, False),
        ({"xmlpath": "results.xml"}, False),
        ({"maxfail": 1}, False),
        ({"reportchars": "aP"}, False),
        ({"reportchars": "A"}, False),
    ],
)
def test_options_that_need_all_reports(options: dict[str, Any], *, enough: bool) -> None:
    config: Any = SimpleNamespace(getoption={"reportchars": "", **options}.get)
    assert FewReports.are_enough(config) == enough
