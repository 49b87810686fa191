"""A real broker inside of a test: its own thread, its own directory, a free port.

with Broker({"num.partitions": 3}) as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    broker.advance(24 * 3600 * 1000)   # a day later

Importing this costs next to nothing: what a broker is made of is imported by the first start, in its thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from tempfile import TemporaryDirectory
    from types import TracebackType

    import trio

    from kwire.broker.net.serve import RunningNode
    from kwire.broker.storage.disk import RealDisk

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 60
LOOK_SECONDS = 1
"""How often whoever waits for a broker looks whether it is still there."""


class Broker:
    """A broker in a thread of this process. It may be started again after it was stopped."""

    def __init__(
        self, overrides: Mapping[str, object] | None = None, *, log_dir: str | os.PathLike[str] | None = None
    ) -> None:
        """`overrides` are Kafka's keys for a broker, with values as in a properties file, or plain ones.

        Data in `log_dir` stays, for another start or for others to read, and is synced as Kafka syncs it.
        Without one it goes when the broker stops, and nothing waits for the disk.
        """
        self._overrides = {key: _text(value) for key, value in (overrides or {}).items()}
        self._given_log_dir = None if log_dir is None else str(log_dir)
        self._temporary: TemporaryDirectory[str] | None = None
        self._thread: _Thread | None = None
        self._advancing = threading.Lock()

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect: host:port of each listener, with commas between them."""
        return self._running.bootstrap

    @property
    def log_dir(self) -> str:
        """Where its data is, while it runs."""
        directory = self._given_log_dir or (self._temporary and self._temporary.name)
        if not directory:
            raise RuntimeError("the broker does not run")
        return directory

    def start(self) -> None:
        """Return once the broker serves. Raises what keeps it from that: ConfigError, BindError, ..."""
        if self._thread is not None:
            raise RuntimeError("the broker runs already")
        if self._given_log_dir is None:
            from tempfile import TemporaryDirectory

            self._temporary = TemporaryDirectory(prefix="kwire-")
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": self.log_dir,
            "group.initial.rebalance.delay.ms": "0",
            **self._overrides,
        }
        thread = _Thread(properties, throwaway=self._temporary is not None)
        thread.start()
        try:
            thread.wait_until_started()
        except BaseException:
            self._remove_temporary()
            raise
        self._thread = thread

    def stop(self) -> None:
        """Shut the broker down cleanly, so that nothing of it is left in the process, if it runs.

        Raises what has ended it before, if it has not lived to be stopped.
        """
        thread, self._thread = self._thread, None
        try:
            if thread is not None:
                thread.stop()
        finally:
            self._remove_temporary()

    def advance(self, delay_ms: int) -> None:
        """Let `delay_ms` pass for the broker: whatever is due by then happens, each thing at its own time.

        Returns when all of that is done: its replies are on their way, and what it had to write is written.
        From any thread. Clients live on in their own time. A day takes about a second: a broker has timers
        that come every second. Who interrupts it leaves the clock where it is by then.
        """
        if not isinstance(delay_ms, int):
            raise TypeError(f"whole milliseconds, and not {delay_ms!r}")
        if delay_ms < 0:
            raise ValueError(f"time does not go back, by {delay_ms} ms or at all")
        running, settled = self._running, threading.Event()
        with self._advancing:
            running.loop.call_from_thread(lambda: running.loop.advance(delay_ms, settled.set))
            try:
                while not settled.wait(LOOK_SECONDS):
                    if self._running is not running or not running.loop.running:
                        raise RuntimeError("the broker has ended")
            except BaseException:
                running.loop.call_from_thread(running.loop.stop_advancing)
                raise

    @property
    def _running(self) -> RunningNode:
        if self._thread is None or self._thread.running is None:
            raise RuntimeError("the broker does not run")
        return self._thread.running

    def _remove_temporary(self) -> None:
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.cleanup()


class _Thread(threading.Thread):
    """The broker's thread, from the configuration to the clean shutdown."""

    def __init__(self, properties: Mapping[str, str], *, throwaway: bool) -> None:
        super().__init__(name="kwire broker", daemon=True)
        self.running: RunningNode | None = None
        self._properties = properties
        self._throwaway = throwaway
        self._started_or_ended = threading.Event()
        self._failure: BaseException | None = None
        self._stop_asked: trio.Event | None = None

    def run(self) -> None:
        try:
            import trio

            trio.run(self._serve)
        except BaseException as error:
            self._failure = error
        finally:
            self._started_or_ended.set()

    async def _serve(self) -> None:
        import trio

        from kwire.broker.config import load
        from kwire.broker.net.serve import serve

        disk: RealDisk | None = None
        if self._throwaway:
            from kwire.testing.throwaway import ThrowawayDisk

            disk = ThrowawayDisk()
        self._stop_asked = trio.Event()
        async with serve(load(None, {}, self._properties), disk=disk, alone=True) as self.running:
            self._started_or_ended.set()
            await self._stop_asked.wait()

    def wait_until_started(self) -> None:
        if not self._started_or_ended.wait(START_TIMEOUT_SECONDS):
            raise TimeoutError(f"the broker did not start within {START_TIMEOUT_SECONDS} s")
        if self._failure is not None:
            self.join()
            raise self._failure

    def stop(self) -> None:
        if self.is_alive() and self.running is not None:
            self.running.loop.call_from_thread(self._end)
        self.join(STOP_TIMEOUT_SECONDS)
        if self.is_alive():
            raise TimeoutError(f"the broker did not stop within {STOP_TIMEOUT_SECONDS} s")
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        assert self.running is not None
        assert self._stop_asked is not None
        self.running.loop.alone = False  # whoever waits to be told is another task
        self._stop_asked.set()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
