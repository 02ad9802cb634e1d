"""The proxy passes everything on, and counts what went over it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from benchmarks.lab.proxy import BACK, THERE, Chunk, Proxy, Recording


def there(*statements: str, locks: bool = False, releases: bool = False) -> Chunk:
    return Chunk(0.0, THERE, statements, locks, releases)


answer = Chunk(0.0, BACK, (), locks=False, releases=False)


def test_a_round_trip_is_a_wait_for_the_server() -> None:
    chunks = [there("SELECT"), there("SELECT"), answer, answer, there("COMMIT"), answer]
    assert Recording(chunks).round_trips == 2


def test_a_lock_is_held_from_its_grant_to_the_first_release() -> None:
    lock, release = there("SELECT", locks=True), there("COMMIT", releases=True)
    begin, change = there("BEGIN"), there("UPDATE")
    turns = [begin, lock, change, change, release, release]
    assert Recording([chunk for turn in turns for chunk in (turn, answer)]).held == 3
    together = there("SELECT", "COMMIT", locks=True, releases=True)
    assert Recording([begin, answer, together, answer]).held == 0


def test_without_a_lock_there_is_nothing_to_hold() -> None:
    with pytest.raises(ValueError, match="no lock"):
        _ = Recording([there("SELECT"), answer]).held
    with pytest.raises(ValueError, match="no release"):
        _ = Recording([there("SELECT", locks=True), answer]).held


@pytest.fixture
def echo() -> Iterator[int]:
    """Answer what was said, on this port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_one, args=(listener,))
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join()


def answer_one(listener: socket.socket) -> None:
    client, _ = listener.accept()
    with client, suppress(OSError):
        while said := client.recv(100):
            client.sendall(said)


@pytest.mark.parametrize("delay", [0.0, 0.001])
def test_it_counts_what_it_passes_on(echo: int, delay: float) -> None:
    proxy = Proxy("127.0.0.1", echo)
    try:
        proxy.delay(delay)
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            assert said(client, b"before") == b"before"
            with proxy.recording() as recordings:
                for line in (b"BEGIN", b"SELECT 1 FOR UPDATE", b"UPDATE x SET y", b"COMMIT"):
                    assert said(client, line) == line
            assert said(client, b"after") == b"after"
    finally:
        proxy.close()
    (recording,) = recordings
    assert (recording.round_trips, recording.held) == (4, 2)
    assert recording.chunks[4].statements == ("UPDATE",)
    assert recording.chunks[2].statements == ("SELECT", "FOR UPDATE")


def said(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line)
    return client.recv(100)
