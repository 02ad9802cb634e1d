"""Drops reports of a worker that would change nothing at the controller."""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol  # public to plugins that repeat tests


class FewReports:
    """A worker's plugin: for a passed test, it does not report the setup and the teardown.

    The controller reads the reports of all workers, and prints nothing for two of such a test's three.
    """

    @staticmethod
    def are_enough(config: pytest.Config) -> bool:
        """Return whether no option needs more reports.

        Such options ask for setup times, a file of all reports, the output of passed tests, or an end at the
        first failure, which pytest must know before the teardown.
        """
        wanted = ("xmlpath", "maxfail")
        return (
            config.getoption("durations") is None
            and not any(map(config.getoption, wanted))
            and not {*"PA"} & {*config.getoption("reportchars")}
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test as pytest does, and report at the end."""
        hook, place = item.ihook, {"nodeid": item.nodeid, "location": item.location}
        hook.pytest_runtest_logstart(**place)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        # pytest shows the teardown's output below the failure.
        passed = all(one.passed and not hasattr(one, "wasxfail") for one in reports)
        for report in reports:
            if report.when == "call" or not passed:
                hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(**place)
        return True
