"""Benchmarks: one script for each question, each run as ``python -m benchmarks.overhead``.

``python -m benchmarks`` runs all of them and writes benchmarks/RESULTS.md (``make bench``).
"""
