"""Locks that are not granted: what the page docs/not-granted.md says, row by row."""
