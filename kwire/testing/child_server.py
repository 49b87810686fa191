"""The program of the child process: it runs brokers, and executes the calls of its parent process.

Each connection has a thread, which executes one call after another. The process ends when its parent process
has ended or has closed the control socket.
"""

from __future__ import annotations

import array
import faulthandler
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final

# Everything that a broker and its client need, so that the first start is as fast as later ones.
import kwire.broker.config
import kwire.broker.net.running_node
import kwire.testing.blocking_client
import kwire.testing.embedded_disk
import kwire.testing.interceptor
from kwire.broker.net.open_file_limit import raise_open_file_limit
from kwire.host.platform.processes import watch_process
from kwire.testing.child_frames import Call, Result, drain, encode_result, receive, split_error
from kwire.testing.child_recorder import RecorderChanges, RecorderFeed
from kwire.testing.embedded_broker import EmbeddedBroker
from kwire.testing.faults import Fault, FaultCount, SeededFault
from kwire.testing.kafka import Kafka
from kwire.testing.raise_statement import is_raised_by_kwire

MAX_LOG_RECORDS: Final = 10_000
"""The maximum number of log records that wait for the parent process. The oldest are dropped."""
MAX_LOG_FILE_BYTES: Final = 1 << 20
LOG_WAIT_SECONDS: Final = 0.5
"""The longest wait for log records, after which the parent process may set another level."""
END_TIMEOUT_SECONDS: Final = 5
LOG_FD: Final = 2
LIFECYCLE_METHODS: Final = {"start", "stop", "shut_down", "crash"}
"""Methods that wait for each other: an interrupted call of `start` goes on in this process."""


def main(parent_pid: int, path: list[str]) -> None:
    """Serve calls until the parent process `parent_pid` has ended. `path` is its `sys.path`."""
    sys.path += [one for one in path if one not in sys.path]
    faulthandler.enable()
    raise_open_file_limit()
    server = ChildServer()
    threading.excepthook = server.log_thread_error
    _wait_for_connections(parent_pid, server)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(END_TIMEOUT_SECONDS)  # a broker that does not end must not keep the process alive
    server.end()


def _wait_for_connections(parent_pid: int, server: ChildServer) -> None:
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # processes that this one starts must not inherit the control socket
    os.close(null)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    # Forked processes may keep the control socket open after the end of the parent process.
    check_ms = watch_process(poll, parent_pid)
    while os.getppid() == parent_pid:
        ready = [fd for fd, _ in poll.poll(check_ms)]
        if not ready:
            continue
        if control.fileno() not in ready:
            return
        descriptors = array.array("i")
        data, ancillary, _, _ = control.recvmsg(1, socket.CMSG_LEN(descriptors.itemsize))
        if not data:
            return
        for _, _, packed in ancillary:
            descriptors.frombytes(packed)
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            with suppress(OSError):  # the caller was interrupted
                sock.sendall(b"r")  # the receipt, which the caller waits for
            connection = Connection(sock, server)
            threading.Thread(target=connection.serve, name="kwire child call", daemon=True).start()


class ConnectionClosed(Exception):
    """The connection of a call was closed, because the test was interrupted."""


class Connection:
    """A connection of the parent process or of one of its forks."""

    def __init__(self, sock: socket.socket, server: ChildServer) -> None:
        self._sock, self._server = sock, server

    def serve(self) -> None:
        """Execute calls until the connection is closed."""
        with self._sock:
            try:
                while True:
                    self._sock.sendall(self._execute(receive(self._sock.recv)))
            except (EOFError, OSError):
                pass

    def check_open(self) -> None:
        """Raise ConnectionClosed if the caller no longer waits for the result."""
        try:
            is_closed = not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            is_closed = True
        if is_closed:
            raise ConnectionClosed

    def _execute(self, frame: bytes) -> bytes:
        takes_log = False
        value = error = None
        try:
            call = Call(*pickle.loads(frame))  # fails for instances of classes that cannot be imported here
            if call.log_level is not None:
                takes_log = True
                self._server.set_log_level(call.log_level)
            value = self._server.execute(call, self)
        except BaseException as raised:
            error = raised
            if not is_raised_by_kwire(error):  # a bug: show where it is
                error.add_note(f"In the child process:\n{''.join(traceback.format_tb(error.__traceback__))}")
        records = self._server.log.take() if takes_log else []
        try:
            return encode_result(Result(value, None if error is None else split_error(error), records))
        except Exception as failure:  # of any kind: objects can have a __reduce__ of their own
            if error is None:
                text = f"the result of the call cannot be sent: {describe_error(failure)}"
            else:
                text = describe_error(error)
            return encode_result(Result(None, split_error(RuntimeError(text)), []))


def describe_error(error: BaseException) -> str:
    """Return the class and the text of an error, even if its `__str__` fails."""
    return "".join(traceback.format_exception_only(error)).strip()


class ForwardedLog(logging.Handler):
    """Log records that wait for the parent process. Warnings are also written to the standard error."""

    def __init__(self) -> None:
        super().__init__()
        self._records: deque[dict[str, Any]] = deque(maxlen=MAX_LOG_RECORDS)
        self._arrived = threading.Event()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, in a form that can be sent."""
        text = self.format(record)  # also sets exc_text
        state = {**record.__dict__, "msg": record.getMessage(), "args": None, "exc_info": None}
        self._records.append(state)
        self._arrived.set()
        if record.levelno >= logging.WARNING:
            if os.fstat(LOG_FD).st_size > MAX_LOG_FILE_BYTES:
                os.ftruncate(LOG_FD, 0)
                os.lseek(LOG_FD, 0, os.SEEK_SET)
            os.write(LOG_FD, f"{text}\n".encode(errors="replace"))

    def wait(self) -> None:
        """Wait for a record, for `LOG_WAIT_SECONDS` at most."""
        self._arrived.wait(LOG_WAIT_SECONDS)

    def take(self) -> list[dict[str, Any]]:
        """Remove and return all records."""
        self._arrived.clear()
        return drain(self._records)


class ChildServer:
    """The objects of this process that can be called."""

    def __init__(self) -> None:
        self.log = ForwardedLog()
        self._logger = logging.getLogger("kwire")
        logging.getLogger().addHandler(self.log)
        self._brokers: dict[int, ServedBroker] = {}
        self._handles = count(1)

    def set_log_level(self, level: int) -> None:
        """Set the level of all loggers of kwire."""
        if self._logger.level != level:
            self._logger.setLevel(level)

    def execute(self, call: Call, caller: Connection) -> Any:
        """Execute a call of this object (handle 0) or of a broker, or read an attribute."""
        for handle in call.released:
            broker = self._brokers.pop(handle, None)
            if broker is not None:
                broker.release()
        if not call.handle:
            return getattr(self, call.method)(*call.args)
        return self._brokers[call.handle].execute(caller, call.method, call.args)

    def new_broker(self, settings: dict[str, Any]) -> int:
        """Create a broker from the arguments of `EmbeddedBroker`, and return its handle."""
        handle = next(self._handles)  # unlike `+= 1`, one step for calls of several threads
        self._brokers[handle] = ServedBroker(EmbeddedBroker(**settings))
        return handle

    def wait_for_log(self) -> None:
        """Wait for log records, which the result of each call contains."""
        self.log.wait()

    def log_thread_error(self, args: threading.ExceptHookArgs) -> None:
        """Log the error of a thread."""
        assert args.exc_value is not None
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        self._logger.error("A thread of the child process has failed", exc_info=error)

    def end(self) -> None:
        """Kill all brokers. The end of the interpreter then removes temporary directories."""
        for broker in self._brokers.values():
            broker.embedded.crash()


class ServedBroker:
    """A broker, and its clients."""

    def __init__(self, embedded: EmbeddedBroker) -> None:
        self.embedded = embedded
        self._faults: list[Fault] = []
        self._feed = RecorderFeed(embedded.requests)
        self._clients: dict[tuple[float, frozenset[tuple[str, str]]], ServedClient] = {}
        self._lifecycle = threading.Lock()

    def execute(self, caller: Connection, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of this object or of the embedded broker, or return an attribute."""
        if method == "advance":
            args = (*args, caller.check_open)
        elif method == "call_client":
            args = (caller, *args)
        found = getattr(self, method, None) or getattr(self.embedded, method)
        if method in LIFECYCLE_METHODS:
            with self._lifecycle:
                return found(*args)
        return found(*args) if callable(found) else found

    def release(self) -> None:
        """End the broker, which no process can call anymore."""
        self.close_clients()
        with self._lifecycle, suppress(Exception):  # the error of a broker that has failed
            self.embedded.crash()

    def call_client(
        self,
        caller: Connection,
        timeout_s: float,
        properties: Mapping[str, str],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a method of the `BlockingClient` of this broker with these security settings."""
        key = timeout_s, frozenset(properties.items())
        client = self._clients.get(key)
        if client is None:
            client = self._clients.setdefault(key, ServedClient(self.embedded, timeout_s, properties))
        return client.execute(caller, method, args, kwargs)

    def close_clients(self) -> None:
        """Close the connections of the clients."""
        while self._clients:
            self._clients.popitem()[1].close()

    def register_fault(self, is_seeded: bool, remaining: int | None, attributes: dict[str, Any]) -> int:
        """Add a fault with these attributes, and return its number."""
        fault: Fault = object.__new__(SeededFault if is_seeded else Fault)
        fault.__dict__.update(attributes, count=FaultCount(remaining))
        self.embedded.faults.register(fault)
        self._faults.append(fault)
        return len(self._faults) - 1

    def read_fault(self, number: int) -> tuple[int, int | None]:
        """Return the counts of a fault."""
        return self._faults[number].count.read()

    def cancel_fault(self, number: int) -> None:
        """Cancel a fault."""
        self._faults[number].cancel()

    def clear_faults(self) -> None:
        """Cancel all faults."""
        self.embedded.faults.clear()

    def any_fault_pending(self) -> bool:
        """Return whether any fault may apply to a request."""
        return self.embedded.faults.any_pending

    def clear_requests(self) -> None:
        """Drop all recorded exchanges."""
        self.embedded.requests.clear()

    def read_requests(self, since: int, pending: list[int], names_known: int) -> RecorderChanges:
        """Return what the recorder of the parent process does not have yet."""
        return self._feed.read(since, pending, names_known)


class ServedClient(Kafka):
    """The client of a broker in this process."""

    def __init__(self, embedded: EmbeddedBroker, timeout_s: float, properties: Mapping[str, str]) -> None:
        # Without security settings, the client uses a listener without authentication and TLS.
        bootstrap = embedded.client_bootstrap if properties else embedded.node_bootstrap
        super().__init__(bootstrap, timeout_s=timeout_s, properties=properties)
        self._embedded = embedded
        self._calling = threading.local()

    def execute(self, caller: Connection, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the `BlockingClient`."""
        self._embedded.check_alive()
        return self._call(partial(self._execute, caller, method, args, kwargs))

    def _execute(
        self,
        caller: Connection,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        client: kwire.testing.blocking_client.BlockingClient,
    ) -> Any:
        self._calling.caller = caller  # each caller has a thread of its own
        found = getattr(client, method)(*args, **kwargs)
        return list(found) if isinstance(found, Iterator) else found

    def _sleep(self, seconds: float) -> None:
        self._embedded.check_alive()
        self._calling.caller.check_open()
        super()._sleep(seconds)
