"""Locks that are not granted: what the page docs/errors.md says, row by row."""
