"""A broker in a thread of this process, with everything that it keeps while it is down.

`Broker` uses this class, in the process of the test or in a child process (see `kwire.testing.child_broker`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from kwire.host.system_os import os
from kwire.testing.broker_thread import START_TIMEOUT_SECONDS, BrokerThread
from kwire.testing.denials import Denials
from kwire.testing.disk_space import DiskSpace
from kwire.testing.faults import Faults
from kwire.testing.one_shot_event import OneShotEvent
from kwire.testing.recorder import MAX_BYTES, MAX_EXCHANGES, Recorder
from kwire.testing.reservations import Reservations
from kwire.testing.thread_call import check_cancelled
from kwire.testing.unexpected_errors import UnexpectedErrors
from kwire.testing.users import NODE_LISTENER, client_protocol, listener_settings

if TYPE_CHECKING:
    from kwire.broker.net.running_node import RunningNode
    from kwire.testing.acl import Denial
    from kwire.testing.debugger_clock import DebuggerClock

DIRECTORY_KEYS = {"log.dirs", "log.dir", "metadata.log.dir"}
"""Keys that can put a broker's data outside of the directory that `Broker` chooses."""
POLL_SECONDS = 1
"""The interval at which a waiting thread checks that the broker is still running."""


class EmbeddedBroker:
    """A broker in a thread. While it is down, it keeps its directory, ports, clock, faults and requests."""

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
        """Set up without starting. `tls` are the broker configs of a TLS listener for clients, if any."""
        self.requests = Recorder(max_recorded_requests, max_recorded_bytes)
        self.faults = Faults()
        self._denials = Denials()
        self._errors = UnexpectedErrors()
        self.clock: DebuggerClock | None = None
        """The clock of the broker, from the first start to `stop`."""
        self._overrides, self._users, self._tls, self._syncs = overrides, users, tls, syncs
        self._cluster_id: str | None = None
        self._reserved = Reservations(log_dir)
        self._port = self._nodes_port = 0
        self._thread: BrokerThread | None = None
        self._advancing = threading.Lock()
        self._resumed: OneShotEvent | None = None
        self._disk_space = DiskSpace()
        self._owner = os.getpid()
        """The process that has started the thread. A forked process has no such thread."""

    @property
    def running(self) -> RunningNode:
        """The node. Raises RuntimeError if it is not running."""
        if self._thread is None or self._thread.running is None:
            raise RuntimeError("the broker is not running: call start(), or use it in a with statement")
        return self._thread.running

    @property
    def bootstrap(self) -> str:
        """The addresses of all listeners of the running broker, separated by commas."""
        return self.running.bootstrap

    @property
    def client_bootstrap(self) -> str:
        """The addresses of the listeners for clients.

        With users or TLS, this is only the listener with authentication or TLS.
        """
        return self.bootstrap.partition(",")[0] if self._has_client_listener else self.bootstrap

    @property
    def node_bootstrap(self) -> str:
        """The addresses of the listeners without authentication and TLS."""
        return self.bootstrap.partition(",")[2] if self._has_client_listener else self.bootstrap

    @property
    def _has_client_listener(self) -> bool:
        return bool(self._users or self._tls)

    @property
    def is_running(self) -> bool:
        """Whether the broker has started, and has neither stopped nor failed since.

        In a forked process, whether it was running at the fork. Clients can connect to it there, too.
        """
        return self._thread is not None and (self._is_forked or self._thread.is_alive())

    @property
    def _is_forked(self) -> bool:
        """Whether the broker runs in a process that has forked this one."""
        return self._thread is not None and os.getpid() != self._owner

    @property
    def is_responsive(self) -> bool:
        """Whether the broker is running and is not suspended by `hang`."""
        return self.is_running and self._resumed is None

    @property
    def log_dir(self) -> str | None:
        """The data directory, or None if it is temporary and the broker is not running."""
        return self._reserved.directory

    def set_cluster_id(self, cluster_id: str) -> None:
        """Make `start` format the directory with this cluster id, if it is a first start."""
        self._cluster_id = cluster_id

    def set_port(self, port: int) -> None:
        """Make `start` use this port for clients, instead of a free port."""
        self._port = port

    def now_ms(self) -> int | None:
        """Return the time of the broker in ms since 1970, or None before the first start."""
        return None if self.clock is None else self.clock.now_ms()

    def denials(self, since_s: float) -> list[Denial]:
        """Return the requests that the broker has denied since `since_s`, in seconds since 1970."""
        return self._denials.find(since_s)

    def take_errors(self) -> list[str]:
        """Remove and return the unexpected exceptions inside the broker, as text."""
        return self._errors.take()

    def check_alive(self) -> None:
        """Raise RuntimeError with the reason if the broker has failed, or cannot run in this process."""
        from kwire.testing.doubles import check_doubles

        check_doubles()
        if reason := self.running.failure.reason:
            raise RuntimeError(f"the broker has failed: {reason}; fix this, then call start()")

    def start(self) -> None:
        """Start the broker, and return when it serves requests."""
        from kwire.testing.doubles import check_doubles, explain_failure

        check_doubles()
        self._check_owner()
        self._owner = os.getpid()
        directory = self._reserved.create_directory()
        if "listeners" not in self._overrides:
            self._port = self._port or self._reserved.reserve_port()
            if self._has_client_listener:
                self._nodes_port = self._nodes_port or self._reserved.reserve_port()
        address = f"{NODE_LISTENER}://127.0.0.1:{self._nodes_port or self._port}"
        if self._nodes_port:
            protocol = client_protocol(has_users=bool(self._users), has_tls=bool(self._tls))
            address = f"{protocol}://127.0.0.1:{self._port},{address}"
        properties = {
            "listeners": address,
            "advertised.listeners": address,
            "log.dirs": directory,
            "group.initial.rebalance.delay.ms": "0",
            **listener_settings(self._users, self._tls),
            **self._overrides,
        }
        try:
            if self.clock is not None:
                self.clock.resume()  # the start needs timers
            else:
                from kwire.testing.debugger_clock import DebuggerClock

                self.clock = DebuggerClock()
                if self._cluster_id is not None:
                    from kwire.testing.formatting import format_directory

                    format_directory(directory, self._cluster_id)
            thread = BrokerThread(
                properties,
                clock=self.clock,
                recorder=self.requests,
                faults=self.faults,
                denials=self._denials,
                space=self._disk_space,
                errors=self._errors,
                syncs=self._syncs,
            )
            self._thread = thread
            thread.launch()
            thread.wait_until_started()
        except BaseException as error:
            with suppress(Exception):  # the error that prevents the start is raised below
                self._end_thread(BrokerThread.kill)
            self._reset()
            explain_failure(error)
            raise

    def stop(self) -> None:
        """Shut the broker down cleanly, and release what it keeps while it is down.

        Does nothing in a forked process: the broker belongs to the process that has started it.
        """
        if self._is_forked:
            return
        try:
            self._end_thread(lambda thread: thread.stop(keeps_data=self._keeps_data))
        finally:
            self._reset()

    def shut_down(self) -> None:
        """Shut the broker down cleanly, and keep everything for the next start."""
        self._end_thread(lambda thread: thread.stop(keeps_data=True))

    def crash(self) -> None:
        """End the broker as if its process were killed, and keep everything for the next start."""
        self._end_thread(BrokerThread.kill)

    def hang(self) -> None:
        """Suspend the event loop until `resume`."""
        self._check_owner()
        if self._resumed is not None:
            raise RuntimeError("the broker is already suspended by hang()")
        hanging, resumed = OneShotEvent(), OneShotEvent()

        def wait() -> None:
            hanging.set()
            resumed.wait()

        self.running.loop.call_from_thread(wait)
        if not hanging.wait(START_TIMEOUT_SECONDS):
            resumed.set()
            raise TimeoutError(f"the broker's event loop was busy for {START_TIMEOUT_SECONDS} s")
        self._resumed = resumed

    def resume(self) -> None:
        """Continue the event loop."""
        hanging, self._resumed = self._resumed, None
        if hanging is not None:
            hanging.set()

    def pause_clock(self) -> None:
        """Stop the clock, until `resume_clock` or the next start."""
        if self.clock is not None:
            self.clock.pause()

    def resume_clock(self) -> None:
        """Continue the clock."""
        if self.clock is not None:
            self.clock.resume()

    def set_disk_full(self, is_full: bool) -> None:
        """Make writes fail, or succeed again."""
        self._check_owner()
        self._disk_space.is_full = is_full

    def advance(
        self, delay_ms: int, check: Callable[[], None] = check_cancelled, *, internode_clock: bool = True
    ) -> None:
        """Move the clock forward, and return when everything that became due is done.

        Without `internode_clock`, timeouts between nodes do not expire. `check` is called once per second of
        real time. If it raises an exception, the clock stops at the time that it has reached.
        """
        if self._resumed is not None:
            raise RuntimeError("time cannot pass while hang() suspends the broker: call resume() first")
        self.check_alive()
        self._check_owner()
        running, settled = self.running, OneShotEvent()
        with self._advancing:
            running.loop.call_from_thread(
                lambda: running.loop.advance(delay_ms, settled.set, advance_internode_clock=internode_clock)
            )
            try:
                while not settled.wait(POLL_SECONDS):
                    check()
                    self.check_alive()
                    if self.running is not running or not running.loop.running:
                        raise RuntimeError("the broker has stopped")
            except BaseException:
                with suppress(OSError):  # the loop is closed, so that there is nothing to stop
                    running.loop.call_from_thread(running.loop.stop_advancing)
                raise

    @property
    def _keeps_data(self) -> bool:
        """Whether the data is kept after `stop`."""
        return not self._reserved.is_temporary or not DIRECTORY_KEYS.isdisjoint(self._overrides)

    def _check_owner(self) -> None:
        """Raise RuntimeError in a forked process: it cannot reach the thread of the broker."""
        if self._is_forked:
            raise RuntimeError(
                "the broker runs in the process that has forked this one, and only that process can change "
                'it: start a broker in this process, or use Broker(..., process="child")'
            )

    def _end_thread(self, end: Callable[[BrokerThread], None]) -> None:
        self._check_owner()
        self.resume()
        self.resume_clock()
        thread, self._thread = self._thread, None
        if thread is not None:
            from kwire.testing.doubles import check_doubles

            check_doubles()  # green threads cannot wait for the broker to end
            end(thread)

    def _reset(self) -> None:
        """Release what `crash` keeps for the next start: the directory, the ports and the clock."""
        self._reserved.release()
        self._port, self._nodes_port, self.clock = 0, 0, None
