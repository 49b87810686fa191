"""A real broker inside of a test: its own thread, its own temporary directory, a free port.

with run_broker() as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    broker.advance(7 * 24 * 3600 * 1000)   # a week later
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from kwire.broker.config import load

if TYPE_CHECKING:
    from kwire.broker.net.serve import RunningNode

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 60


class EmbeddedBroker:
    """A broker that runs in another thread of this process."""

    def __init__(self, broker: RunningNode, log_dir: str) -> None:
        self._broker = broker
        self.bootstrap = broker.bootstrap
        """Where clients connect, as host:port."""
        self.log_dir = log_dir

    def advance(self, delay_ms: int) -> None:
        """Move the broker's clock forward: timeouts that are due by then happen now."""
        self._broker.clock.advance(delay_ms)


@contextmanager
def run_broker(
    overrides: Mapping[str, str] | None = None, *, log_dir: str | None = None
) -> Iterator[EmbeddedBroker]:
    """Run a broker inside of the block, with Kafka's keys in `overrides`.

    With `log_dir` its data stays where it is when the block ends; otherwise it is removed.
    """
    if log_dir is None:
        with (
            tempfile.TemporaryDirectory(prefix="kwire-") as directory,
            run_broker(overrides, log_dir=directory) as broker,
        ):
            yield broker
        return
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": log_dir,
        "group.initial.rebalance.delay.ms": "0",
        **(overrides or {}),
    }
    thread = _BrokerThread(properties)
    thread.start()
    try:
        yield EmbeddedBroker(thread.wait_until_started(), log_dir)
    finally:
        thread.stop()


class _BrokerThread(threading.Thread):
    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(name="kwire broker", daemon=True)
        self._properties = properties
        self._changed = threading.Event()
        self._broker: RunningNode | None = None
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop_asked: trio.Event | None = None

    def run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            self._failure = error
        finally:
            self._changed.set()

    async def _serve(self) -> None:
        from kwire.broker.net.serve import serve

        self._token = trio.lowlevel.current_trio_token()
        self._stop_asked = trio.Event()
        async with serve(load(None, {}, self._properties), alone=True) as self._broker:
            self._changed.set()
            await self._stop_asked.wait()

    def wait_until_started(self) -> RunningNode:
        if not self._changed.wait(START_TIMEOUT_SECONDS):
            raise TimeoutError(f"the broker did not start within {START_TIMEOUT_SECONDS} s")
        if self._failure is not None:
            raise self._failure
        assert self._broker is not None
        return self._broker

    def stop(self) -> None:
        if self._token is not None and self._stop_asked is not None:
            try:
                self._token.run_sync_soon(self._stop_asked.set)
            except trio.RunFinishedError:
                pass
        self.join(STOP_TIMEOUT_SECONDS)
        if self.is_alive():
            raise TimeoutError(f"the broker did not stop within {STOP_TIMEOUT_SECONDS} s")
        if self._failure is not None:
            raise self._failure
