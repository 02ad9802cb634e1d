"""Listens, and answers for the session model; one thread for each connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lab.tsql.checker import Checker
from tests.sql.tds.conversation import Conversation
from tests.sql.tds.model import Database, Session
from tests.sql.tds.packets import receive, send


@dataclass(frozen=True)
class Sent:
    """A text that a driver has sent, with the state of its session."""

    session: int
    how: str
    text: str
    in_transaction: bool

    def __str__(self) -> str:
        return f"{self.how}: {self.text}" if self.text else self.how


@dataclass
class TDSServer:
    """A server of TDS: the texts that were sent to it, and the sessions that it has kept."""

    database: Database = field(default_factory=Database)
    sent: list[Sent] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # every text, also what a test has cleared away
    sessions: list[Session] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)  # of this server itself
    port: int = 0

    @property
    def texts(self) -> list[str]:
        """Everything that was sent, in order."""
        return [str(sent) for sent in self.sent]


@contextmanager
def listening() -> Iterator[TDSServer]:
    """Listen on a port of the loopback until the block ends."""
    server = TDSServer()
    peers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                peers.append(peer)
                threading.Thread(target=_serve, args=(server, peer), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(timeout=5)
            for peer in peers:
                peer.close()


def _serve(server: TDSServer, peer: socket.socket) -> None:
    number, session = len(server.sessions), Session(server.database)
    server.sessions.append(session)

    def note(how: str, text: str) -> None:
        in_transaction = session.begun_at is not None
        server.sent.append(Sent(number, how, " ".join(text.split()), in_transaction))
        server.seen |= {text} - {""}

    conversation = Conversation(session, note)
    with peer:
        try:
            while (message := receive(peer)) is not None:
                send(peer, conversation.answer(message))
        except BaseException as fault:  # noqa: BLE001  # the test that looks at it is elsewhere
            server.faults.append(fault)


def said(server: TDSServer, words: str) -> list[Sent]:
    """Return what has these words in it."""
    return [sent for sent in server.sent if words in str(sent)]


def wrong(server: TDSServer, parser: Checker) -> dict[str, list[str]]:
    """Return what is no good T-SQL of all that was seen, and why."""
    texts = sorted(server.seen)
    verdicts = zip(texts, parser.check(texts), strict=True)
    return {text: found.syntax + found.rules for text, found in verdicts if not found}
