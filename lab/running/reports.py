"""The reports that a worker sends to the controller: those that something comes of."""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol  # public to plugins that repeat tests


class FewReports:
    """A plugin for a worker: where a test has passed, it says nothing of its setup and its teardown.

    The controller reads the reports of all workers, and prints nothing for two of the three of such a test.
    """

    @staticmethod
    def are_enough(config: pytest.Config) -> bool:
        """Return whether no option asks for more.

        That is the time of each setup, a file of all reports, what tests that have passed have printed, or an
        end at a failure, which pytest must know of before the teardown.
        """
        wanted = ("xmlpath", "maxfail")
        return (
            config.getoption("durations") is None
            and not any(map(config.getoption, wanted))
            and not {*"PA"} & {*config.getoption("reportchars")}
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test as pytest does; report when it is over."""
        hook, place = item.ihook, {"nodeid": item.nodeid, "location": item.location}
        hook.pytest_runtest_logstart(**place)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        # What a teardown has printed is shown below the failure.
        passed = all(one.passed and not hasattr(one, "wasxfail") for one in reports)
        for report in reports:
            if report.when == "call" or not passed:
                hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(**place)
        return True
