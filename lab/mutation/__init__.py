"""Mutants of the package: what the selection of --pairwise catches, and what all combinations catch."""
