"""``python -m sa_doclock.cli``."""

from . import main

main()
