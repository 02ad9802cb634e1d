"""``python -m lab.programs``: runs the audit on the test suites of public programs."""
