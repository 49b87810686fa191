"""A real broker inside of a test: its own thread, its own directory, a free port.

with Broker({"num.partitions": 3}) as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    broker.advance(24 * 3600 * 1000)   # a day later

Importing this costs next to nothing: what a broker is made of is imported by the first start, in its thread.
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
"""Keys by which a broker's data may lie elsewhere than where it is put by itself."""
POLL_SECONDS = 1
"""How often whoever waits for a broker looks whether it is still there."""


class Broker(EmbeddedKafka):
    """A broker in a thread of this process. It may be started again after it was stopped.

    What a test asks of it beside its clients, topics and records and groups, is what it asks of any `Kafka`.
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
        """`overrides` are Kafka's keys for a broker, with values as in a properties file, or plain ones.

        Data in `log_dir` stays, for another start or for others to read, and is synced as Kafka syncs it,
        unless `sync` is false. Without one it goes when the broker stops, and nothing waits for the disk.
        `timeout_s` is how long each question of the test's own may take.

        With `users`, passwords by names, clients have to say who they are (`login`), by SASL_PLAINTEXT with
        PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, or by a delegation token (`create_token`). These are all users
        that there are: whom `log_dir` has of before does not come any more.
        """
        if users is not None:
            check_users(users, overrides or {})
        super().__init__(log_dir, timeout_s, users)
        self.requests = Recorder()
        """What clients have asked, and what they were answered."""
        self.faults = Faults()
        """What is to go wrong with their requests."""
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
        """Where clients connect: host:port of each listener, with commas between them.

        With users, that of theirs.
        """
        bootstrap = self._running.bootstrap
        return bootstrap.partition(",")[0] if self._users else bootstrap

    @property
    def is_running(self) -> bool:
        """Whether it serves: not before it was started, nor after it was stopped or has ended by itself."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Return once the broker serves. Raises what keeps it from that: ConfigError, BindError, ...

        After a crash it is the same broker: its data, its address and its clock are as they were.
        """
        if self.is_running:
            raise RuntimeError("the broker runs already")
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

            self._clock = SystemClock()
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
        """Shut the broker down cleanly, so that nothing of it is left in the process, if it runs.

        Raises what has ended it before, if it has not lived to be stopped.
        """
        try:
            self._end_thread(lambda thread: thread.stop(keeps_data=self._keeps_data))
        finally:
            self._reset()

    def restart(self) -> None:
        """Shut the broker down cleanly, and start it where it was, with its data."""
        self._end_thread(lambda thread: thread.stop(keeps_data=True))
        self.start()

    def crash(self) -> None:
        """End the broker as if its process were killed: nobody is answered, and nothing is closed or noted.

        It comes back by `start`, on the same address, and recovers its data as after any crash.
        """
        self._end_thread(BrokerThread.kill)

    def hang(self) -> None:
        """Let the broker do nothing until `resume`, as a process that is stopped: connections stay open."""
        if self._resumed is not None:
            raise RuntimeError("the broker hangs already")
        hanging, resumed = threading.Event(), threading.Event()

        def wait() -> None:
            hanging.set()
            resumed.wait()

        self._running.loop.call_from_thread(wait)
        if not hanging.wait(START_TIMEOUT_SECONDS):
            resumed.set()
            raise TimeoutError(f"the broker did nothing for {START_TIMEOUT_SECONDS} s as it is")
        self._resumed = resumed

    def resume(self) -> None:
        """Let a broker go on that hangs; what was sent to it meanwhile is taken up."""
        hanging, self._resumed = self._resumed, None
        if hanging is not None:
            hanging.set()

    def fill_disk(self) -> None:
        """Have every write fail as on a full disk, until `free_disk`.

        As Apache Kafka, a broker ends that can use none of its log directories: it may be started again once
        there is room.
        """
        self._disk_space.is_full = True

    def free_disk(self) -> None:
        """Let there be room on the disk."""
        self._disk_space.is_full = False

    def advance(self, delay_ms: int) -> None:
        """Let `delay_ms` pass for the broker: whatever is due by then happens, each thing at its own time.

        Returns when all of that is done: its replies are on their way, and what it had to write is written.
        From any thread. Clients live on in their own time. What a broker finds by looking again and again, as
        retention, is looked at 200 times and at the end, however long that is: a week takes milliseconds. Who
        interrupts it leaves the clock where it is.
        """
        check_delay(delay_ms)
        self._advance_clock(delay_ms)

    def _advance_clock(self, delay_ms: int, *, internode_clock: bool = True) -> None:
        if self._resumed is not None:
            raise RuntimeError("no time passes for a broker that hangs: let it resume first")
        self._check_alive()
        running, settled = self._running, threading.Event()
        with self._advancing:
            running.loop.call_from_thread(
                lambda: running.loop.advance(delay_ms, settled.set, internode_clock=internode_clock)
            )
            try:
                while not settled.wait(POLL_SECONDS):
                    self._check_alive()
                    if self._running is not running or not running.loop.running:
                        raise RuntimeError("the broker has ended")
            except BaseException:
                with suppress(OSError):  # nothing is left to be stopped
                    running.loop.call_from_thread(running.loop.stop_advancing)
                raise

    def _now_ms(self) -> int:
        return super()._now_ms() if self._clock is None else self._clock.now_ms()

    @property
    def _running(self) -> RunningNode:
        if self._thread is None or self._thread.running is None:
            raise RuntimeError("the broker does not run: start() it, or use it in a with statement")
        return self._thread.running

    def _call(self, operation: Callable[[BlockingClient], T]) -> T:
        self._check_alive()
        return super()._call(operation)

    def _sleep(self, seconds: float) -> None:
        self._check_alive()  # which says more than that nobody answers
        super()._sleep(seconds)

    def _check_alive(self) -> None:
        """RuntimeError, with the reason, where it has ended by itself."""
        if reason := self._running.failure.reason:
            raise RuntimeError(f"the broker has ended: {reason}; start() it once that is mended")

    @property
    def _keeps_data(self) -> bool:
        """Whether its data is still there when it has stopped."""
        return self._temporary is None or not DIRECTORY_KEYS.isdisjoint(self._overrides)

    def _end_thread(self, end: Callable[[BrokerThread], None]) -> None:
        self.close()
        self.resume()
        thread, self._thread = self._thread, None
        if thread is not None:
            end(thread)

    def _reset(self) -> None:
        """Give up what an end by a crash leaves for the next start."""
        self._release()
        self._port, self._nodes_port, self._clock = 0, 0, None


def check_delay(delay_ms: object) -> None:
    """TypeError, ValueError: it is no time that can pass."""
    if not isinstance(delay_ms, int):
        raise TypeError(f"whole milliseconds, and not {delay_ms!r}")
    if delay_ms < 0:
        raise ValueError(f"time does not go back, by {delay_ms} ms or at all")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
