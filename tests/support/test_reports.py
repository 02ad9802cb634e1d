"""The reports of a worker: each result and each failure is among them, a setup that has passed is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.reports import FewReports

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


def test_each_result_and_each_failure_is_reported(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(TESTS)
    run = pytester.inline_run(path, "-p", "no:randomly", plugins=[FewReports()])
    reports = run.getreports("pytest_runtest_logreport")
    assert [(one.nodeid.partition("::")[2], one.when, one.outcome) for one in reports] == [
        ("test_passes", "call", "passed"),
        ("test_fails", "call", "failed"),
        ("test_leaves", "call", "skipped"),
        ("test_skipped", "setup", "skipped"),
        ("test_known", "call", "skipped"),
        ("test_with[setup]", "setup", "failed"),
        ("test_with[teardown]", "call", "passed"),
        ("test_with[teardown]", "teardown", "failed"),
    ]
    for begun_or_over in ("logstart", "logfinish"):
        assert len(run.getcalls(f"pytest_runtest_{begun_or_over}")) == 7


@pytest.mark.parametrize(
    ("options", "enough"),
    [({}, True), ({"durations": 0}, False), ({"xmlpath": "results.xml"}, False)],
)
def test_options_that_need_all_reports(options: dict[str, Any], *, enough: bool) -> None:
    config: Any = SimpleNamespace(getoption=options.get)
    assert FewReports.are_enough(config) == enough
