"""A parameter server over TCP: weights with a version, and rounds of gradients that are applied in order.

Each worker has one connection. It says hello and gets the weights. Then, over and over, it pushes the gradient of its
next round and pulls weights, of which it says how old they may be; a goodbye ends it. Numbers are raw float32 behind
a header. A worker that fails or vanishes, or a failing update, ends the run of all: the server says why, and their
clients raise UserError.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from implementations.errors import UserError

_HELLO = struct.Struct("!qi")  # token, worker
_PUSH = struct.Struct("!qqdq")  # round, version wanted, learning rate, bytes that follow
_WEIGHTS = struct.Struct("!qq")  # version, bytes that follow; version _FAILED: what follows says why
_FAILED = -1  # in place of a version or round
_GOODBYE = 0  # in place of a round, which count from 1
_MOST_TEXT = 4096  # bytes of a reason
_CONNECT_S = 60.0
_HELLO_S = 5.0  # from a connection to its hello
_LEAVE_S = 30.0  # that the server waits for goodbyes
_STOP_S = 5.0  # that it takes to end without
_YIELD_S = (
    0.5  # that a client keeps the failure of another to itself, so that the other one can tell of it first
)

# Called with the mean gradient (P,) of a round and its learning rate; changes the weights.
Apply = Callable[[np.ndarray, float], None]


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the number that a client must know."""

    host: str
    port: int
    token: int


class ParameterServer:
    """Weights of ``workers`` workers. Version v has the updates of rounds 1 .. v.

    The update of a round is made when the gradients of all workers are there, from their mean, added up in the
    workers' order whatever the order of their arrival. So a gradient of round t that was computed with version v is
    late by ``t - 1 - v`` versions. Gradients of later rounds wait until then.
    """

    def __init__(
        self, workers: int, weights_p: np.ndarray, apply: Apply, version: int = 0, host: str = "127.0.0.1"
    ) -> None:
        """Serve at once. ``weights_p``: what ``apply`` changes. UserError where nothing can listen at ``host``."""
        self._workers, self._weights_p, self._apply = workers, weights_p, apply
        self._version, self._published_p = version, weights_p.copy()
        self._rounds: dict[int, _Round] = {}
        self._changed = threading.Condition()
        self._failure: str | None = None
        self._connections: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        try:
            self._listener = socket.create_server((host, 0), backlog=workers)
        except OSError as error:
            raise UserError(f"parameter server: cannot listen at {host} ({error})") from None
        self.address = Address(host, self._listener.getsockname()[1], secrets.randbits(62))
        self._start(self._welcome, ())

    def _start(self, target: Callable[..., None], arguments: tuple) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True, name="parameter-server")
        self._threads.append(thread)
        thread.start()

    # Its own threads: one that welcomes, and one a worker

    def _welcome(self) -> None:
        """Take connections until every worker has one; whoever does not know the token gets none."""
        while len(self._connections) < self._workers:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            _tune(connection)
            worker = self._hello(connection)
            with self._changed:
                if worker is None or worker in self._connections or self._failure is not None:
                    connection.close()
                    continue
                self._connections[worker] = connection
            if len(self._connections) == self._workers:
                self._listener.close()
            self._start(self._serve, (worker, connection))

    def _hello(self, connection: socket.socket) -> int | None:
        """Whose connection it is; None for a stranger's."""
        hello = bytearray(_HELLO.size)
        connection.settimeout(_HELLO_S)
        try:
            if not _received(connection, hello):
                return None
            connection.settimeout(None)
        except OSError:
            return None
        token, worker = _HELLO.unpack(hello)
        return worker if token == self.address.token and 0 <= worker < self._workers else None

    def _serve(self, worker: int, connection: socket.socket) -> None:
        """One worker's requests until its goodbye."""
        last = self._version
        try:
            self._send(connection, *self._published(last))
            while True:
                header = bytearray(_PUSH.size)
                if not _received(connection, header):
                    raise ConnectionError("its connection was closed")
                number, wanted, rate, size = _PUSH.unpack(header)
                if number == _GOODBYE:
                    return
                if number == _FAILED and size <= _MOST_TEXT:
                    raise ConnectionError(_text(connection, size))
                if number != last + 1 or size != self._weights_p.nbytes:
                    raise ConnectionError(f"it sent {size} bytes as its round {number}")
                gradient_p = np.empty_like(self._weights_p)
                if not _received(connection, gradient_p):
                    raise ConnectionError("its connection was closed in the middle of a gradient")
                self._add(worker, number, gradient_p, rate)
                last = number
                self._send(connection, *self._published(wanted))
        except _Stopped as stop:
            _say(connection, str(stop))
        except Exception as error:
            self._fail(f"worker {worker} failed in round {last + 1}: {error}")
            _say(connection, self._failure or "")
        finally:
            connection.close()

    def _send(self, connection: socket.socket, version: int, weights_p: np.ndarray) -> None:
        connection.sendall(_WEIGHTS.pack(version, weights_p.nbytes))
        connection.sendall(memoryview(weights_p).cast("B"))

    def _add(self, worker: int, number: int, gradient_p: np.ndarray, rate: float) -> None:
        """A worker's gradient; the update, where it is the last of its round."""
        with self._changed:
            if self._failure is not None:
                raise _Stopped(self._failure)
            waiting = self._rounds.setdefault(number, _Round())
            if not waiting.add(worker, gradient_p, self._workers):
                return
            # every worker pushes its rounds in order, so rounds are complete in order
            del self._rounds[number]
            try:
                self._apply(np.divide(waiting.sum_p, self._workers, out=waiting.sum_p), rate)
            except Exception as error:
                self._fail(f"the update of round {number} failed: {error}")
                raise _Stopped(self._failure) from error
            self._version, self._published_p = number, self._weights_p.copy()
            self._changed.notify_all()

    def _published(self, wanted: int) -> tuple[int, np.ndarray]:
        """The newest version, once it is the ``wanted`` one or newer, and its weights, which nobody changes."""
        with self._changed:
            self._changed.wait_for(lambda: self._version >= wanted or self._failure is not None)
            if self._failure is not None:
                raise _Stopped(self._failure)
            return self._version, self._published_p

    def _fail(self, reason: str) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = reason
            self._changed.notify_all()

    # The end

    def close(self) -> None:
        """Wait for every worker's goodbye, and end; all threads have ended then."""
        self._join(_LEAVE_S)
        self.stop("the parameter server has ended")

    def stop(self, reason: str) -> None:
        """End now: workers that wait for weights, or ask for some later, are told the reason."""
        self._fail(reason)
        _shut(self._listener, socket.SHUT_RDWR)  # wakes up who waits for a connection
        self._listener.close()
        # first those threads that wait for a worker's words, then those that speak to a deaf one
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            with self._changed:
                connections = list(self._connections.values())
            for connection in connections:
                _shut(connection, how)
            if self._join(_STOP_S):
                return

    def _join(self, seconds: float) -> bool:
        """Wait so long for the threads; whether all have ended."""
        until = time.monotonic() + seconds
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


class _Round:
    """Gradients of one round, added up in the workers' order."""

    def __init__(self) -> None:
        self.sum_p: np.ndarray | None = None
        self._added = 0
        self._early: dict[int, np.ndarray] = {}  # of workers whose turn is later

    def add(self, worker: int, gradient_p: np.ndarray, workers: int) -> bool:
        """Whether all gradients are in the sum now. The array is the round's from here on."""
        self._early[worker] = gradient_p
        while self._added in self._early:
            next_p = self._early.pop(self._added)
            self.sum_p = next_p if self.sum_p is None else np.add(self.sum_p, next_p, out=self.sum_p)
            self._added += 1
        return self._added == workers


class _Stopped(Exception):
    """The run has ended with a failure, which the message tells."""


class Client:
    """A worker's connection."""

    def __init__(self, address: Address, worker: int) -> None:
        """UserError where the server cannot be reached."""
        self._where = f"parameter server at {address.host}:{address.port}"
        connection = None
        try:
            connection = socket.create_connection((address.host, address.port), timeout=_CONNECT_S)
            _tune(connection)
            connection.settimeout(None)
            connection.sendall(_HELLO.pack(address.token, worker))
        except OSError as error:
            if connection is not None:
                connection.close()
            raise UserError(
                f"worker {worker} cannot reach the {self._where} ({error}); workers must reach each other by TCP"
            ) from None
        self._socket = connection

    def push(self, gradient_p: np.ndarray, number: int, wanted: int, rate: float) -> None:
        """Send the gradient of round ``number``; the next ``pull`` waits for version ``wanted`` or a newer one.

        UserError where the run has failed.
        """
        try:
            self._socket.sendall(_PUSH.pack(number, wanted, rate, gradient_p.nbytes))
            self._socket.sendall(memoryview(gradient_p).cast("B"))
        except OSError:
            # closed at its end: raises, with the reason if it was told before that
            self.pull(np.empty(0, np.float32))

    def pull(self, weights_p: np.ndarray) -> int:
        """Receive weights into ``weights_p``; returns their version. UserError where the run has failed."""
        try:
            header = bytearray(_WEIGHTS.size)
            whole = _received(self._socket, header)
            version, size = _WEIGHTS.unpack(header)
            if whole and version == _FAILED:
                raise _failure(f"asynchronous training ended: {_text(self._socket, size)}")
            whole = whole and size == weights_p.nbytes and _received(self._socket, weights_p)
        except OSError as error:
            raise _failure(f"the {self._where} is gone ({error})") from None
        if not whole:
            raise _failure(f"the {self._where} is gone (its process ended, or was stopped)")
        return version

    def leave(self) -> None:
        """Say goodbye and close; the server goes on with the others."""
        with suppress(OSError):  # gone before us
            self._socket.sendall(_PUSH.pack(_GOODBYE, 0, 0.0, 0))
        self.close()

    def fail(self, reason: str) -> None:
        """End the run of all for this reason, and close."""
        text = reason.encode()[:_MOST_TEXT]
        with suppress(OSError):
            self._socket.sendall(_PUSH.pack(_FAILED, 0, 0.0, len(text)) + text)
        self.close()

    def close(self) -> None:
        """Close without a word, which ends the run of all."""
        self._socket.close()


def _failure(message: str) -> UserError:
    """What another one's failure is here."""
    time.sleep(_YIELD_S)
    return UserError(message)


def _tune(connection: socket.socket) -> None:
    """Small headers go out at once; a host that is lost is noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _received(connection: socket.socket, buffer: bytearray | np.ndarray) -> bool:
    """Fill the buffer; False where the other side has closed first."""
    view = memoryview(buffer).cast("B")
    while len(view):
        got = connection.recv_into(view)
        if not got:
            return False
        view = view[got:]
    return True


def _text(connection: socket.socket, size: int) -> str:
    """Words of ``size`` bytes."""
    words = bytearray(size)
    _received(connection, words)
    return words.decode(errors="replace")


def _say(connection: socket.socket, reason: str) -> None:
    """Tell a client why the run has ended, if it is still there."""
    text = reason.encode()[:_MOST_TEXT]
    with suppress(OSError):
        connection.sendall(_WEIGHTS.pack(_FAILED, len(text)) + text)


def _shut(connection: socket.socket, how: int) -> None:
    with suppress(OSError):  # already closed
        connection.shutdown(how)
