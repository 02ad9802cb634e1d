"""The options and fixtures of tests/ and audit/tests/, by subject."""

pytest_plugins = [
    "tests.plugins.process",
    "tests.plugins.matrix",
    "tests.plugins.servers",
    "tests.plugins.databases",
    "tests.reliability.plugin",
    "pytester",
]
