"""The reports that a worker sends to the controller: those that something comes of."""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol  # public to plugins that repeat tests


class FewReports:
    """A plugin for a worker: it says nothing of a setup or a teardown that has passed.

    The controller reads the reports of all workers, and prints nothing for two of the three of a test.
    """

    @staticmethod
    def are_enough(config: pytest.Config) -> bool:
        """Return whether no option asks for more: the time of each setup, or a file of all reports."""
        return config.getoption("durations") is None and not config.getoption("xmlpath")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test as pytest does; report when it is over."""
        hook, place = item.ihook, {"nodeid": item.nodeid, "location": item.location}
        hook.pytest_runtest_logstart(**place)
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(**place)
        return True
