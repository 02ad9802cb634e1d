"""The fixtures and options of tests/plugin.py, for tests/ and for audit/tests/."""

pytest_plugins = ["tests.plugin"]
