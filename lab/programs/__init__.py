"""The audit on the test suites of public programs: ``python -m lab.programs``."""
