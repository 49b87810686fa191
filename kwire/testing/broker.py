"""A broker for a test, in a thread of the test's process, with its own directory and a free port.

    with Broker({"num.partitions": 3}) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        broker.advance(24 * 3600 * 1000)   # a day later

This module imports quickly. The broker's own modules are imported in its thread on the first start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from kwire.testing.broker_thread import START_TIMEOUT_SECONDS, BrokerThread
from kwire.testing.disk_space import DiskSpace
from kwire.testing.embedded_kafka import EmbeddedKafka
from kwire.testing.faults import Faults
from kwire.testing.kafka import TIMEOUT_SECONDS
from kwire.testing.recorder import Recorder
from kwire.testing.users import CLIENT_LISTENER, NODE_LISTENER, check_users, user_settings

if TYPE_CHECKING:
    import os

    from kwire.broker.net.running_node import RunningNode
    from kwire.host.clock import Clock
    from kwire.testing.blocking_client import BlockingClient

T = TypeVar("T")

DIRECTORY_KEYS = {"log.dirs", "log.dir", "metadata.log.dir"}
"""Keys that can put a broker's data outside of the directory that `Broker` chooses."""
POLL_SECONDS = 1
"""The interval at which a waiting thread checks that the broker is still running."""


class Broker(EmbeddedKafka):
    """A broker in a thread of this process. It can be stopped and started again.

    It has all methods of `Kafka`.
    """

    def __init__(
        self,
        overrides: Mapping[str, object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        sync: bool | None = None,
        timeout_s: float = TIMEOUT_SECONDS,
    ) -> None:
        """Configure a broker; `start`, or a `with` statement, starts it.

        `overrides` are Kafka's broker configs. Values are strings as in a properties file, or Python values.

        Data in `log_dir` is kept after the broker stops, and is synced as Kafka syncs it unless `sync` is
        false. Without `log_dir` the data is removed when the broker stops, and nothing is synced unless
        `sync` is true. `timeout_s` is the timeout of each method that sends requests.

        `users` maps names to passwords. With `users`, clients have to authenticate by SASL_PLAINTEXT with
        PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or a delegation token: see `client_config` and `create_token`.
        SCRAM credentials of other users that are stored in `log_dir` are deleted.
        """
        if users is not None:
            check_users(users, overrides or {})
        super().__init__(log_dir, timeout_s, users)
        self.requests = Recorder()
        """The requests of clients, with their responses."""
        self.faults = Faults()
        """The faults to inject into requests of clients."""
        self._overrides = {key: _text(value) for key, value in (overrides or {}).items()}
        self._sync = log_dir is not None if sync is None else sync
        self._thread: BrokerThread | None = None
        self._advancing = threading.Lock()
        self._port = self._nodes_port = 0
        self._resumed: threading.Event | None = None
        self._clock: Clock | None = None
        self._disk_space = DiskSpace()

    @property
    def bootstrap_servers(self) -> str:
        """The host:port of each listener, separated by commas. With `users`, only the SASL listener."""
        bootstrap = self._running.bootstrap
        return bootstrap.partition(",")[0] if self._users else bootstrap

    @property
    def is_running(self) -> bool:
        """Whether the broker has started, and has neither stopped nor failed since."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the broker, and return when it serves requests.

        After `crash`, the broker keeps its data, address and clock. Raises RuntimeError if the broker is
        already running, or else the error that prevents the start, such as ConfigError or BindError.
        """
        if self.is_running:
            raise RuntimeError("the broker is already running")
        self._create_directory()
        if not self._port and "listeners" not in self._overrides:
            self._port = self._reserve_port()
            self._nodes_port = self._reserve_port() if self._users else 0
        address = f"{NODE_LISTENER}://127.0.0.1:{self._nodes_port or self._port}"
        if self._nodes_port:
            address = f"{CLIENT_LISTENER}://127.0.0.1:{self._port},{address}"
        properties = {
            "listeners": address,
            "advertised.listeners": address,
            "log.dirs": self.log_dir,
            "group.initial.rebalance.delay.ms": "0",
            **(user_settings(self._users) if self._users else {}),
            **self._overrides,
        }
        if self._clock is None:
            from kwire.host.clock import SystemClock
            from kwire.host.system_time import libc_time_ns

            self._clock = SystemClock(libc_time_ns)
        thread = BrokerThread(
            properties,
            clock=self._clock,
            recorder=self.requests,
            faults=self.faults,
            space=self._disk_space,
            syncs=self._sync,
        )
        thread.start()
        try:
            thread.wait_until_started()
        except BaseException:
            self._reset()
            raise
        self._thread = thread
        try:
            self._set_passwords()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shut the broker down cleanly. Does nothing if the broker is not running.

        If the broker has failed before, this method raises the error.
        """
        try:
            self._end_thread(lambda thread: thread.stop(keeps_data=self._keeps_data))
        finally:
            self._reset()

    def restart(self) -> None:
        """Shut the broker down cleanly, and start it again at the same address with its data."""
        self._end_thread(lambda thread: thread.stop(keeps_data=True))
        self.start()

    def crash(self) -> None:
        """End the broker as if its process were killed: no response, no flush, no clean shutdown.

        `start` starts it again at the same address, with log recovery as after any crash.
        """
        self._end_thread(BrokerThread.kill)

    def hang(self) -> None:
        """Suspend the broker until `resume`, like a stopped process (SIGSTOP): connections stay open."""
        if self._resumed is not None:
            raise RuntimeError("the broker is already suspended by hang()")
        hanging, resumed = threading.Event(), threading.Event()

        def wait() -> None:
            hanging.set()
            resumed.wait()

        self._running.loop.call_from_thread(wait)
        if not hanging.wait(START_TIMEOUT_SECONDS):
            resumed.set()
            raise TimeoutError(f"the broker's event loop was busy for {START_TIMEOUT_SECONDS} s")
        self._resumed = resumed

    def resume(self) -> None:
        """Continue a broker that `hang` suspended. The broker then handles the requests that have arrived."""
        hanging, self._resumed = self._resumed, None
        if hanging is not None:
            hanging.set()

    def fill_disk(self) -> None:
        """Make every write fail as on a full disk, until `free_disk`.

        Like Apache Kafka, a broker stops when it has no usable log directory left. It can be started again
        after `free_disk`.
        """
        self._disk_space.is_full = True

    def free_disk(self) -> None:
        """Make writes succeed again."""
        self._disk_space.is_full = False

    def advance(self, delay_ms: int) -> None:
        """Move the broker's clock forward by `delay_ms`, and run each timer at its own time.

        This method returns when everything that became due is done: responses are queued, and writes are
        finished. It can be called from any thread. The clocks of clients do not move.

        Periodic tasks, such as retention, run at most 200 times and once at the end, however long `delay_ms`
        is, so a week takes milliseconds. If this call is interrupted, the clock stops where it is.
        """
        check_delay(delay_ms)
        self._advance_clock(delay_ms)

    def _advance_clock(self, delay_ms: int, *, internode_clock: bool = True) -> None:
        if self._resumed is not None:
            raise RuntimeError("time cannot pass while hang() suspends the broker: call resume() first")
        self._check_alive()
        running, settled = self._running, threading.Event()
        with self._advancing:
            running.loop.call_from_thread(
                lambda: running.loop.advance(delay_ms, settled.set, advance_internode_clock=internode_clock)
            )
            try:
                while not settled.wait(POLL_SECONDS):
                    self._check_alive()
                    if self._running is not running or not running.loop.running:
                        raise RuntimeError("the broker has stopped")
            except BaseException:
                with suppress(OSError):  # the loop is closed, so that there is nothing to stop
                    running.loop.call_from_thread(running.loop.stop_advancing)
                raise

    def _now_ms(self) -> int:
        return super()._now_ms() if self._clock is None else self._clock.now_ms()

    @property
    def _running(self) -> RunningNode:
        if self._thread is None or self._thread.running is None:
            raise RuntimeError("the broker is not running: call start(), or use it in a with statement")
        return self._thread.running

    def _call(self, operation: Callable[[BlockingClient], T]) -> T:
        self._check_alive()
        return super()._call(operation)

    def _sleep(self, seconds: float) -> None:
        self._check_alive()  # its error says more than a timeout
        super()._sleep(seconds)

    def _check_alive(self) -> None:
        """Raise RuntimeError with the reason if the broker has failed."""
        if reason := self._running.failure.reason:
            raise RuntimeError(f"the broker has failed: {reason}; fix this, then call start()")

    @property
    def _keeps_data(self) -> bool:
        """Whether the data is kept after `stop`."""
        return self._temporary is None or not DIRECTORY_KEYS.isdisjoint(self._overrides)

    def _end_thread(self, end: Callable[[BrokerThread], None]) -> None:
        self.close()
        self.resume()
        thread, self._thread = self._thread, None
        if thread is not None:
            end(thread)

    def _reset(self) -> None:
        """Release what `crash` keeps for the next start: the directory, the ports and the clock."""
        self._release()
        self._port, self._nodes_port, self._clock = 0, 0, None


def check_delay(delay_ms: object) -> None:
    """Raise TypeError unless the delay is an int, and ValueError if it is negative."""
    if not isinstance(delay_ms, int):
        raise TypeError(f"delay_ms is a whole number of milliseconds, not {delay_ms!r}")
    if delay_ms < 0:
        raise ValueError(f"delay_ms={delay_ms}: pass 0 or more, because time cannot go back")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
