"""A seeded sequence of broker failures that runs while a test goes on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from kwire.host.system_time import monotonic
from kwire.testing.awaitable import call_in_thread
from kwire.testing.broker import Broker
from kwire.testing.event_loop import check_with_statement
from kwire.testing.thread_call import CallThreads

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

INTERVAL_S: Final = 0.1, 1.0
DURATION_S: Final = 0.2, 3.0


class Outages:
    """A context manager during which one broker at a time crashes, restarts, hangs or is disconnected.

    `repr` lists the outages so far.
    """

    def __init__(
        self,
        seed: int,
        brokers: Mapping[int, Broker],
        isolate: Callable[[int], None],
        heal: Callable[[], None],
    ) -> None:
        """Prepare outages of `brokers`. `isolate` disconnects a broker from the others until `heal`."""
        self._seed = seed
        self._rng = random.Random(f"kwire outages {seed}")
        self._brokers, self._isolate, self._heal = brokers, isolate, heal
        self._events: list[str] = []
        self._started_s = monotonic()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kwire outages", daemon=True)

    def __repr__(self) -> str:
        return f"outages with seed {self._seed}: {'; '.join(self._events) or 'none yet'}"

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        check_with_statement("cluster.outages(...)")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the current outage to end. All brokers run then, but may not be in sync yet.

        Raises the error of an outage that failed, unless the block raises one.
        """
        self._stopping.set()
        self._thread.join()
        if error is not None:
            error.add_note(repr(self))
        elif self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the current outage to end, as `__exit__` does."""
        end = partial(self.__exit__, kind, error, trace)
        await call_in_thread(CallThreads(), end, completes=True)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._rng.uniform(*INTERVAL_S)):
                self._run_outage()
        except BaseException as error:
            self._failure = error

    def _run_outage(self) -> None:
        broker_id = self._rng.choice(sorted(self._brokers))
        broker, lasts_s = self._brokers[broker_id], self._rng.uniform(*DURATION_S)
        how, begin, end = self._rng.choice(
            (
                ("crashes", broker.crash, broker.start),
                ("is restarted", broker.restart, lambda: None),
                ("hangs", broker.hang, broker.resume),
                ("is disconnected", lambda: self._isolate(broker_id), self._heal),
            )
        )
        at_s = monotonic() - self._started_s
        self._events.append(f"at {at_s:.1f} s broker {broker_id} {how} for {lasts_s:.1f} s")
        begin()
        self._stopping.wait(lasts_s)
        end()
