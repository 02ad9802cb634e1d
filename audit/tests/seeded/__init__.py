"""Runs audit() on programs that lack locks, and on correct programs."""
