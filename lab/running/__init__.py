"""Runs the tests: selects them, gives them workers and servers, and reports progress and results."""
