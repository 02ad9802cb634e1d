"""Helpers of all tests: the databases and their servers, actors, waits, models."""
