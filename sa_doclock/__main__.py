"""``python -m sa_doclock``: the command line."""

from .cli import main

main()
