"""Servers to work with by hand: ``python -m lab.servers [NAME...] [--for -- COMMAND...]``."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from lab.running.progress import progress
from lab.servers import NAMES, Missing, Server, find_servers, url_variable
from lab.servers.find import LOCAL


def main() -> int:
    """Start the servers, then run the command or wait for Ctrl-C; stop them in any case."""
    options, command = _arguments()
    # SIGTERM ends this process as Ctrl-C does, so that the servers end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    servers: list[Server] = []
    try:
        with progress(lambda: "the servers are being started"):
            wanted = find_servers(options.names or NAMES)
        for found in wanted.values():
            if isinstance(found, Missing):
                print(f"# no {found.name}: {found.reason}", file=sys.stderr)
            else:
                servers.append(found)
        if command:
            return subprocess.run(
                command, env={**os.environ, **_urls(servers)}, check=False
            ).returncode
        for server in servers:
            print(f"# {server.version} ({server.origin})")
        for variable, url in _urls(servers).items():
            print(f"export {variable}='{url}'", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        return 130
    finally:
        stop_all(servers)
    return 0


def stop_all(servers: Iterable[Server]) -> None:
    """Stop these servers, all at the same time."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda server: server.stop(), servers))


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    before, separator, after = _split(sys.argv[1:])
    parser = argparse.ArgumentParser(prog="python -m lab.servers", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(dict.fromkeys((*NAMES, *LOCAL)))}; without names, the first four",
    )
    parser.add_argument(
        "--for", action="store_true", dest="command", help="run the command after -- with them"
    )
    options = parser.parse_args(before)
    if options.command != bool(separator and after):
        parser.error("--for and -- COMMAND... belong together")
    return options, after


def _split(words: list[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in words:
        return words, "", []
    at = words.index("--")
    return words[:at], "--", words[at + 1 :]


def _urls(servers: Iterable[Server]) -> dict[str, str]:
    return {url_variable(server.name): server.url for server in servers}


if __name__ == "__main__":
    sys.exit(main())
