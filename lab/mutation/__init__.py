"""Mutants of the package: how many --pairwise catches, and how many all combinations catch."""
