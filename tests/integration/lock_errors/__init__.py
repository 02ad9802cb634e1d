"""Locks that are not granted: what the page docs/lock-errors.md says, row by row."""
