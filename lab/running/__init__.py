"""A run of the tests: the choice of tests, workers and servers for them, progress and reports."""
