"""Listens, and answers for the session model; one thread for each connection."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.tds import requests, tokens
from tests.tds.model import TEXTS, Called, Database, Ended, Refused, Rows, Session
from tests.tds.packets import Kind, Message, receive, send
from tests.tds.tokens import Change, Command, Done, Status

#: Version, encryption: not supported, instance, thread, no MARS ("PRELOGIN", 2.2.6.5).
_PRELOGIN = ((0, bytes((16, 0, 0x10, 0x27, 0, 0))), (1, b"\x02"), (2, b"\0"), (3, b""), (4, b"\0"))


@dataclass(frozen=True)
class Sent:
    """What a driver has sent, and in which state of its session."""

    session: int
    how: str
    text: str
    in_transaction: bool

    def __str__(self) -> str:
        return f"{self.how}: {self.text}" if self.text else self.how


@dataclass
class TDSServer:
    """What was sent to it, and the sessions that it has kept."""

    database: Database = field(default_factory=Database)
    sent: list[Sent] = field(default_factory=list)
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
    server.sessions.append(Session(server.database))
    connection = _Connection(server, len(server.sessions) - 1)
    with peer:
        try:
            while (message := receive(peer)) is not None:
                send(peer, connection.answer(message))
        except BaseException as fault:  # noqa: BLE001  # the test that looks at it is elsewhere
            server.faults.append(fault)


class _Connection:
    def __init__(self, server: TDSServer, number: int) -> None:
        self._server, self._number = server, number
        self._session = server.sessions[number]
        self._prepared: dict[int, str] = {}
        self._transactions = 0

    def answer(self, message: Message) -> bytes:
        body = message.body
        if message.kind is Kind.PRELOGIN:
            return _prelogin()
        if message.kind is Kind.LOGIN:
            return _login()
        if message.kind is Kind.ATTENTION:
            return tokens.done(Done.STATEMENT, Status.ATTENTION)
        if message.kind is Kind.BATCH:
            return self._batch(requests.batch(body))
        if message.kind is Kind.TRANSACTION:
            return self._manage(requests.transaction(body))
        found = list(requests.calls(body))
        return b"".join(self._call(call, more=call is not found[-1]) for call in found)

    def _note(self, how: str, text: str = "") -> None:
        in_transaction = self._session.begun_at is not None
        self._server.sent.append(Sent(self._number, how, " ".join(text.split()), in_transaction))

    def _batch(self, text: str) -> bytes:
        self._note("batch", text)
        before = self._session.begun_at
        found = b""
        try:
            for answer in self._session.batch(text):
                found += self._one(answer, Done.STATEMENT)
        except Refused as refused:
            found += self._refused(refused, before)
            return found + tokens.done(Done.STATEMENT, Status.ERROR)
        found += self._told_of_transaction(before)
        return found + tokens.done(Done.STATEMENT, Status.FINAL)

    def _call(self, call: requests.Call, *, more: bool) -> bytes:
        if call.procedure.startswith("[sys].sp_datatype_info"):
            return _no_types(more=more)
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
        """Return the text to run, the handle to tell, the values."""
        arguments = call.arguments
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
        return found + self._told_of_transaction(before, Change.ROLLED_BACK)

    def _manage(self, request: requests.TransactionRequest) -> bytes:
        self._note(request.verb + (" and begin" if request.begins_next else ""))
        session, found, status = self._session, b"", Status.FINAL
        begins = request.begins_next or request.verb == "begin"
        try:
            if request.verb != "begin":
                session.end(request.verb)
                found += self._ended(request.verb)
        except Refused as refused:
            found += tokens.error(refused.number, TEXTS[refused.number])
            status = Status.ERROR
            begins = begins and self._server.database.begins_after_3903
        if begins:
            session.begin()
            found += self._begun()
        return found + tokens.done(Done.STATEMENT, status)

    def _told_of_transaction(self, before: str | None, how: Change = Change.COMMITTED) -> bytes:
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


def _prelogin() -> bytes:
    head, data = b"", b""
    start = 5 * len(_PRELOGIN) + 1
    for option, value in _PRELOGIN:
        head += struct.pack(">BHH", option, start + len(data), len(value))
        data += value
    return head + b"\xff" + data


def _no_types(*, more: bool) -> bytes:
    """Answer what pyodbc asks when it connects; without an answer it goes by itself."""
    found = tokens.columns(["TYPE_NAME", "DATA_TYPE", "PRECISION"], ["datetime2", 93, 27])
    found += tokens.done(Done.IN_PROCEDURE, Status.MORE | Status.COUNT, 0)
    return found + tokens.done(Done.PROCEDURE, Status.MORE if more else Status.FINAL)


def _login() -> bytes:
    return b"".join(
        (
            tokens.text_changed(Change.DATABASE, "shop", "master"),
            tokens.changed(Change.COLLATION, new=tokens.of_bytes(tokens.COLLATION)),
            tokens.login_acknowledged(),
            tokens.text_changed(Change.PACKET_SIZE, "4096", "4096"),
            tokens.done(Done.STATEMENT, Status.FINAL),
        )
    )


def said(server: TDSServer, words: str) -> list[Sent]:
    """Return what has these words in it."""
    return [sent for sent in server.sent if words in str(sent)]
