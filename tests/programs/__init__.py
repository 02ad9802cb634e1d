"""The audit on the test suites of public programs: ``python -m tests.programs``."""
