"""``python -m shop`` migrates the database, and runs the web server and a worker; ``web`` and ``worker`` run one."""

import argparse
import threading
from pathlib import Path

import uvicorn
from alembic import command
from alembic.config import Config

from shop import worker
from shop.app import app

HERE = Path(__file__).parents[1]


def migrate() -> None:
    """Bring the tables up to date."""
    command.upgrade(Config(HERE / "alembic.ini"), "head")


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser("shop")
    parser.add_argument(
        "part", choices=("all", "migrate", "web", "worker"), nargs="?", default="all"
    )
    parser.add_argument("--port", type=int, default=8000)
    wanted = parser.parse_args()
    if wanted.part in ("all", "migrate"):
        migrate()
    if wanted.part == "worker":
        worker.run()
    if wanted.part == "all":
        threading.Thread(target=worker.run, daemon=True).start()
    if wanted.part in ("all", "web"):
        uvicorn.run(app, port=wanted.port, log_level="warning")


if __name__ == "__main__":
    main()
