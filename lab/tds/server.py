"""Turns a driver's requests into the tokens of the answers ([MS-TDS] 2.2.1)."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lab.tds import requests, tokens
from lab.tds.answers import TEXTS, Called, Ended, Refused, Rows
from lab.tds.model import Database, Session
from lab.tds.packets import TYPES, Kind, Message, login, no_types, prelogin, receive, send
from lab.tds.tokens import Change, Command, Done, Status
from lab.tsql.checker import Checker


class Conversation:
    """Answers one driver on behalf of its session."""

    def __init__(self, session: Session, note: Callable[[str, str], None]) -> None:
        self._session, self._note = session, note
        self._prepared: dict[int, str] = {}
        self._transactions = 0

    def answer(self, message: Message) -> bytes:
        body = message.body
        if message.kind is Kind.PRELOGIN:
            return prelogin()
        if message.kind is Kind.LOGIN:
            return login()
        if message.kind is Kind.ATTENTION:
            return tokens.done(Done.STATEMENT, Status.ATTENTION)
        if message.kind is Kind.BATCH:
            return self._batch(requests.batch(body))
        if message.kind is Kind.TRANSACTION:
            return self._manage(requests.transaction(body))
        found = list(requests.calls(body))
        return b"".join(self._call(call, more=call is not found[-1]) for call in found)

    def _batch(self, text: str) -> bytes:
        if text.startswith(TYPES):
            return no_types(more=True) + tokens.done(Done.STATEMENT, Status.FINAL)
        self._note("batch", text)
        before = self._session.begun_at
        found = b""
        try:
            for answer in self._session.batch(text):
                found += self._one(answer, Done.STATEMENT)
        except Refused as refused:
            found += self._refused(refused, before)
            return found + tokens.done(Done.STATEMENT, Status.ERROR)
        found += self._changes_of_transaction(before)
        return found + tokens.done(Done.STATEMENT, Status.FINAL)

    def _call(self, call: requests.Call, *, more: bool) -> bytes:
        if call.procedure.startswith(f"[sys].{TYPES}"):
            return no_types(more=more)
        text, handle, values = self._text_of(call)
        self._note(call.procedure, text)
        before = self._session.begun_at
        found, status = b"", Status.MORE if more else Status.FINAL
        try:
            for answer in self._session.procedure(text, values):
                found += self._one(answer, Done.IN_PROCEDURE)
        except Refused as refused:
            found += self._refused(refused, before)
            status |= Status.ERROR
        found += tokens.return_status(0)
        if handle is not None:
            found += tokens.output_parameter("", handle)
        return found + tokens.done(Done.PROCEDURE, status)

    def _text_of(self, call: requests.Call) -> tuple[str, int | None, list[object]]:
        """Return the text to run, the handle to report, the values."""
        arguments = call.arguments
        if call.procedure in ("sp_executesql", "sp_prepexec", "sp_prepare"):
            self._session.declared.append(str(arguments[1]))
        if call.procedure == "sp_executesql":
            return str(arguments[0]), None, arguments[2:]
        if call.procedure in ("sp_prepexec", "sp_prepare"):
            handle = len(self._prepared) + 1
            self._prepared[handle] = str(arguments[2])
            runs = call.procedure == "sp_prepexec"
            return (str(arguments[2]) if runs else ""), handle, arguments[3:]
        if call.procedure == "sp_execute":
            return self._prepared[int(str(arguments[0]))], None, arguments[1:]
        if call.procedure == "sp_unprepare":
            return "", None, []
        raise NotImplementedError(call)

    def _one(self, answer: Rows | Ended, what: Done) -> bytes:
        if isinstance(answer, Rows):
            model = answer.rows[0] if answer.rows else [1] * len(answer.names)
            found = tokens.columns(answer.names, model) + b"".join(map(tokens.one_row, answer.rows))
            return found + tokens.done(what, Status.MORE | Status.COUNT, len(answer.rows))
        if isinstance(answer, Called) and what is Done.STATEMENT:
            return tokens.return_status(0) + tokens.done(Done.PROCEDURE, Status.MORE)
        if answer.count is None:
            return tokens.done(what, Status.MORE, command=Command.SET)
        return tokens.done(what, Status.MORE | Status.COUNT, answer.count, Command.UPDATE)

    def _refused(self, refused: Refused, before: str | None) -> bytes:
        found = tokens.error(refused.number, TEXTS[refused.number])
        return found + self._changes_of_transaction(before, Change.ROLLED_BACK)

    def _manage(self, request: requests.TransactionRequest) -> bytes:
        self._note(request.verb + (" and begin" if request.begins_next else ""), "")
        session, found, status = self._session, b"", Status.FINAL
        begins = request.begins_next or request.verb == "begin"
        try:
            if request.verb != "begin":
                session.end(request.verb)
                found += self._ended(request.verb)
        except Refused as refused:
            found += tokens.error(refused.number, TEXTS[refused.number])
            status = Status.ERROR
            begins = begins and session.database.begins_after_3903
        if begins:
            session.begin()
            found += self._begun()
        return found + tokens.done(Done.STATEMENT, status)

    def _changes_of_transaction(self, before: str | None, how: Change = Change.COMMITTED) -> bytes:
        now = self._session.begun_at
        if (before is None) == (now is None):
            return b""
        return self._begun() if now else self._ended("", how)

    def _begun(self) -> bytes:
        self._transactions += 1
        return tokens.changed(Change.BEGUN, new=self._descriptor())

    def _ended(self, verb: str, how: Change = Change.COMMITTED) -> bytes:
        return tokens.changed(
            Change.ROLLED_BACK if verb == "rollback" else how, old=self._descriptor()
        )

    def _descriptor(self) -> bytes:
        return tokens.of_bytes(struct.pack("<Q", self._transactions))


# --------------------------------------------------------------------------------------------------
# Listens, and answers for the session model; one thread for each connection.


@dataclass(frozen=True)
class Sent:
    """A text that a driver sent, with the state of its session."""

    session: int
    how: str
    text: str
    in_transaction: bool

    def __str__(self) -> str:
        return f"{self.how}: {self.text}" if self.text else self.how


@dataclass
class TDSServer:
    """A TDS server: the texts that it received, and the sessions that it keeps."""

    database: Database = field(default_factory=Database)
    sent: list[Sent] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # every text, even after a test clears the list
    sessions: list[Session] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)  # of this server itself
    port: int = 0

    @property
    def texts(self) -> list[str]:
        """Every text received, in order."""
        return [str(sent) for sent in self.sent]


@contextmanager
def listening() -> Iterator[TDSServer]:
    """Listen on a loopback port until the block ends."""
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
    """Return the texts that contain these words."""
    return [sent for sent in server.sent if words in str(sent)]


def wrong(server: TDSServer, parser: Checker) -> dict[str, list[str]]:
    """Return the invalid T-SQL among all received texts, and why it is invalid."""
    texts = sorted(server.seen)
    verdicts = zip(texts, parser.check(texts), strict=True)
    return {text: found.syntax + found.rules for text, found in verdicts if not found}
