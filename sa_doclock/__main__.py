"""``python -m sa_doclock``: the command line."""

from .tools.cli import main

if __name__ == "__main__":
    main()
