"""A broker in the child process, with the interface of `EmbeddedBroker`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from kwire.host.system_os import os
from kwire.testing.child_process import CHILD_ITSELF, CHILD_PROCESSES, ChildDied, ChildProcess
from kwire.testing.child_recorder import ChildRecorder
from kwire.testing.embedded_broker import DIRECTORY_KEYS
from kwire.testing.faults import Fault, FaultCount, Faults, SeededFault
from kwire.testing.recorder import MAX_BYTES, MAX_EXCHANGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kwire.testing.acl import Denial
    from kwire.testing.blocking_client import BlockingClient


class ChildBroker:
    """A broker in the child process of this process. The child process is started when it is needed."""

    def __init__(
        self,
        overrides: Mapping[str, str],
        *,
        users: Mapping[str, str],
        tls: Mapping[str, str],
        log_dir: str | None,
        syncs: bool,
        max_recorded_requests: int = MAX_EXCHANGES,
        max_recorded_bytes: int = MAX_BYTES,
    ) -> None:
        """Set up without starting. The arguments are those of `EmbeddedBroker`."""
        self._settings = {
            "overrides": {
                key: _absolute_paths(value) if key in DIRECTORY_KEYS else value
                for key, value in overrides.items()
            },
            "users": users,
            "tls": tls,
            "log_dir": None if log_dir is None else _absolute_paths(log_dir),
            "syncs": syncs,
            "max_recorded_requests": max_recorded_requests,
            "max_recorded_bytes": max_recorded_bytes,
        }
        self._configured_log_dir = log_dir
        self._owner = os.getpid()
        self._process: ChildProcess | None = None
        self._handle = 0
        self.requests = ChildRecorder(
            lambda *args: self._call("read_requests", *args),
            lambda: self._call("clear_requests"),
            max_recorded_requests,
            max_recorded_bytes,
        )
        self.faults = ChildFaults(self._call)

    # --- the interface of EmbeddedBroker

    @property
    def bootstrap(self) -> str:
        """The addresses of all listeners of the running broker, separated by commas."""
        return str(self._call("bootstrap"))

    @property
    def node_bootstrap(self) -> str:
        """The addresses of the listeners without authentication and TLS."""
        return str(self._call("node_bootstrap"))

    @property
    def is_running(self) -> bool:
        """Whether the broker has started, and has neither stopped nor failed since."""
        process = self._process
        if process is None:
            return False
        try:
            return bool(process.call(self._handle, "is_running"))
        except ChildDied:
            return False

    @property
    def log_dir(self) -> str | None:
        """The data directory, or None if it is temporary and the broker is not running."""
        if self._configured_log_dir is not None:
            return self._configured_log_dir
        directory: str | None = None if self._process is None else self._call("log_dir")
        return directory

    def set_cluster_id(self, cluster_id: str) -> None:
        """Make `start` format the directory with this cluster id, if it is a first start."""
        self._call("set_cluster_id", cluster_id)

    def set_port(self, port: int) -> None:
        """Make `start` use this port for clients, instead of a free port."""
        self._call("set_port", port)

    def now_ms(self) -> int | None:
        """Return the time of the broker in ms since 1970, or None before the first start."""
        now_ms: int | None = self._call("now_ms")
        return now_ms

    def denials(self, since_s: float) -> list[Denial]:
        """Return the requests that the broker has denied since `since_s`, in seconds since 1970."""
        found: list[Denial] = self._call("denials", since_s)
        return found

    def take_errors(self) -> list[str]:
        """Remove and return the unexpected exceptions inside the broker, as text."""
        process = self._process
        if process is None or not process.is_alive or os.getpid() != self._owner:
            return []
        try:
            errors: list[str] = process.call(self._handle, "take_errors")
        except ChildDied:
            return []  # the next call of a method raises the error
        return errors

    def check_alive(self) -> None:
        """Raise RuntimeError with the reason if the broker has failed."""
        self._call("check_alive")

    def start(self) -> None:
        """Start the broker, in a new child process if the last one has died."""
        if not self.is_running and self._process is not None and not self._process.is_alive:
            self._process = None
        self._call("start")

    def stop(self) -> None:
        """Shut the broker down cleanly, and release what it keeps while it is down."""
        self._end("stop")

    def shut_down(self) -> None:
        """Shut the broker down cleanly, and keep everything for the next start."""
        self._end("shut_down")

    def crash(self) -> None:
        """End the broker as if its process were killed, and keep everything for the next start."""
        self._end("crash")

    def hang(self) -> None:
        """Suspend the event loop until `resume`."""
        self._call("hang")

    def resume(self) -> None:
        """Continue the event loop."""
        if self._process is not None:
            self._call("resume")

    def pause_clock(self) -> None:
        """Stop the clock, until `resume_clock` or the next start."""
        if self._process is not None:
            self._call("pause_clock")

    def resume_clock(self) -> None:
        """Continue the clock."""
        if self._process is not None:
            self._call("resume_clock")

    def set_disk_full(self, is_full: bool) -> None:
        """Make writes fail, or succeed again."""
        self._call("set_disk_full", is_full)

    def advance(self, delay_ms: int) -> None:
        """Move the clock forward, and return when everything that became due is done."""
        self._call("advance", delay_ms)

    # --- clients

    def client(self, timeout_s: float, properties: Mapping[str, str]) -> BlockingClient:
        """Return a client in the child process, which replaced sockets do not affect.

        `properties` are the security settings of a Java client.
        """
        return cast("BlockingClient", _ChildClient(self._call, timeout_s, properties))

    def close_clients(self) -> None:
        """Close the connections of the clients."""
        if self._process is not None and self._process.is_alive and os.getpid() == self._owner:
            self._call("close_clients")

    # --- calls

    def _end(self, how: str) -> None:
        # A forked process leaves the broker to its parent process, which uses it.
        if self._process is not None and os.getpid() == self._owner:
            self._call(how)

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the broker, which is created first if there is none.

        Raises ChildDied once if the child process has died. The next call creates a new broker, which has not
        started.
        """
        __tracebackhide__ = True
        process = self._process
        if process is None:
            process = CHILD_PROCESSES.get()
            self._handle = process.call(CHILD_ITSELF, "new_broker", self._settings)
            self._process = process
            self.requests.forget()
            weakref.finalize(self, process.released.append, self._handle).atexit = False
        try:
            return process.call(self._handle, method, *args)
        except ChildDied:
            self._process = None
            raise


class _ChildClient:
    """A `BlockingClient` in the child process. Iterators are returned as lists."""

    def __init__(self, call: Callable[..., Any], timeout_s: float, properties: Mapping[str, str]) -> None:
        self._call, self._timeout_s, self._properties = call, timeout_s, dict(properties)

    def close(self) -> None:
        """Do nothing: the child process closes the connections when the broker stops."""

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return self._call("call_client", self._timeout_s, self._properties, method, args, kwargs)

        return call


class ChildFaults(Faults):
    """The faults of a broker in the child process, which decides there which requests get them."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._call = call

    def register(self, fault: Fault) -> None:
        """Send a fault to the child process, and read its counts there from now on."""
        attributes = {name: value for name, value in vars(fault).items() if name != "count"}
        is_seeded = isinstance(fault, SeededFault)
        number = self._call("register_fault", is_seeded, fault.remaining, attributes)
        fault.count = _ChildFaultCount(self._call, number)
        self.remember(fault)

    def clear(self) -> None:
        """Cancel all faults."""
        self._call("clear_faults")

    @property
    def any_pending(self) -> bool:
        """Whether any fault may apply to a request."""
        return bool(self._call("any_fault_pending"))

    def match(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> Fault | None:
        """Raise RuntimeError: only the broker matches requests."""
        raise RuntimeError("faults of a broker in a child process are matched in the child process")


class _ChildFaultCount(FaultCount):
    """The counts of a fault in the child process."""

    def __init__(self, call: Callable[..., Any], number: int) -> None:
        self._call, self._number = call, number

    def read(self) -> tuple[int, int | None]:
        """Return `Fault.hits` and `Fault.remaining`."""
        counts: tuple[int, int | None] = self._call("read_fault", self._number)
        return counts

    def cancel(self) -> None:
        """Let no more requests get the fault."""
        self._call("cancel_fault", self._number)


def _absolute_paths(paths: str) -> str:
    """Return paths, separated by commas, relative to the current directory of this process."""
    return ",".join(
        path if path.startswith("/") or not path else f"{os.getcwd()}/{path}"
        for path in (one.strip() for one in paths.split(","))
    )
