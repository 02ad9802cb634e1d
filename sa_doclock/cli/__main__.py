"""``python -m sa_doclock.cli``: the same as ``python -m sa_doclock``."""

from . import main

main()
