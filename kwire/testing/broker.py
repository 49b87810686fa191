"""A broker for a test, in a thread of the test's process, with its own directory and a free port.

    with Broker({"num.partitions": 3}) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        broker.advance(24 * 3600 * 1000)   # a day later

In asyncio and trio, use `async with Broker()`, and await the methods of `broker.aio`.

This module imports quickly. The broker's own modules are imported in its thread on the first start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from kwire.testing.arguments import check_configs, check_delay
from kwire.testing.awaitable import awaitable
from kwire.testing.embedded_broker import EmbeddedBroker
from kwire.testing.embedded_kafka import AioEmbeddedKafka, EmbeddedKafka
from kwire.testing.event_loop import blocking
from kwire.testing.kafka import TIMEOUT_SECONDS
from kwire.testing.recorder import MAX_BYTES, MAX_EXCHANGES
from kwire.testing.started_brokers import STARTED_BROKERS
from kwire.testing.tls import Tls, parse_tls
from kwire.testing.users import check_listeners, check_users

if TYPE_CHECKING:
    import os

    from kwire.testing.acl import Acl, Denial
    from kwire.testing.blocking_client import BlockingClient
    from kwire.testing.child_broker import ChildBroker
    from kwire.testing.recorder import Recorder

T = TypeVar("T")
Process = Literal["thread", "child"]
"""The place of a broker: a thread of the test's process, or the child process."""


class Broker(EmbeddedKafka):
    """A broker in a thread of this process. It can be stopped and started again.

    It has all methods of `Kafka`.
    """

    _variable = "broker"
    _topic_within_s = 0.0

    def __init__(
        self,
        overrides: Mapping[str, object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        tls: bool | Tls = False,
        acls: Sequence[Acl] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        sync: bool | None = None,
        timeout_s: float = TIMEOUT_SECONDS,
        process: Process = "thread",
        max_recorded_requests: int = MAX_EXCHANGES,
        max_recorded_bytes: int = MAX_BYTES,
    ) -> None:
        """Configure a broker; `start`, or a `with` statement, starts it.

        `overrides` are Kafka's broker configs. Values are strings as in a properties file, or Python values.

        Data in `log_dir` is kept after the broker stops, and is synced as Kafka syncs it unless `sync` is
        false. Without `log_dir` the data is removed when the broker stops, and nothing is synced unless
        `sync` is true. `timeout_s` is the timeout of each method that sends requests.

        `users` maps names to passwords. With `users`, clients have to authenticate by SASL_PLAINTEXT with
        PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or a delegation token: see `client_config` and `create_token`.
        SCRAM credentials of other users that are stored in `log_dir` are deleted.

        With `tls`, clients have to use SSL, or SASL_SSL if there are users: see `client_config`. The
        certificates are made in memory, by the package cryptography. `Tls` has more settings.

        With `acls`, even if there are none, the broker authorizes requests by these ACLs: see `set_acls`.

        With `process="child"` the broker runs in a child process, which all such brokers of this process
        share. There it does not notice what a test does to its process: frozen time, a fake file system,
        replaced sockets, gevent.

        `requests` keeps the last `max_recorded_requests` requests, and at most `max_recorded_bytes` of
        requests and responses. It does not keep responses longer than 1/64 of `max_recorded_bytes`.
        """
        check_configs(overrides)
        options = parse_tls(tls)
        if users is not None:
            check_users(users)
        check_listeners(overrides or {}, has_users=users is not None, has_tls=options is not None)
        super().__init__(timeout_s, users, options, acls)
        self._embedded = _class_of(process)(
            self._with_authorizer({key: _text(value) for key, value in (overrides or {}).items()}),
            users=self._users,
            tls=self._tls_settings(),
            log_dir=None if log_dir is None else str(log_dir),
            syncs=log_dir is not None if sync is None else sync,
            max_recorded_requests=max_recorded_requests,
            max_recorded_bytes=max_recorded_bytes,
        )
        self.requests = self._embedded.requests
        """The requests of clients, with their responses."""
        self.requests.source = self
        self.faults = self._embedded.faults
        """The faults to inject into requests of clients."""

    @property
    def aio(self) -> AioBroker:
        """The methods of this object, to be awaited in asyncio or trio."""
        return AioBroker(self)

    @property
    def bootstrap_servers(self) -> str:
        """The host:port of each listener, separated by commas.

        With `users` or `tls`, only the listener with authentication or TLS.
        """
        bootstrap = self._embedded.bootstrap
        return bootstrap.partition(",")[0] if self._has_client_listener else bootstrap

    def close(self) -> None:
        """Close the connections of this object's methods. The next call opens new ones."""
        super().close()
        if not isinstance(self._embedded, EmbeddedBroker):
            self._embedded.close_clients()

    @property
    def is_running(self) -> bool:
        """Whether the broker has started, and has neither stopped nor failed since."""
        return self._embedded.is_running

    @blocking
    def start(self) -> None:
        """Start the broker, and return when it serves requests.

        After `crash`, the broker keeps its data, address and clock. Raises RuntimeError if the broker is
        already running, or else the error that prevents the start, such as ConfigError or BindError.
        """
        if self.is_running:
            raise RuntimeError("the broker is already running")
        self._note_start()
        try:
            self._embedded.start()
            self._create_users()
        except BaseException:
            self.stop()
            raise

    @blocking
    def stop(self) -> None:
        """Shut the broker down cleanly. Does nothing if the broker is not running.

        If the broker has failed before, this method raises the error.
        """
        self.close()
        self._users_created = False
        self._embedded.stop()

    @blocking
    def restart(self) -> None:
        """Shut the broker down cleanly, and start it again at the same address with its data."""
        self.close()
        self._embedded.shut_down()
        self.start()

    @blocking
    def crash(self) -> None:
        """End the broker as if its process were killed: no response, no flush, no clean shutdown.

        `start` starts it again at the same address, with log recovery as after any crash.
        """
        self.close()
        self._embedded.crash()

    @blocking
    def hang(self) -> None:
        """Suspend the broker until `resume`, like a stopped process (SIGSTOP): connections stay open."""
        self._embedded.hang()

    def resume(self) -> None:
        """Continue a broker that `hang` suspended. The broker then handles the requests that have arrived."""
        self._embedded.resume()

    def fill_disk(self) -> None:
        """Make every write fail as on a full disk, until `free_disk`.

        Like Apache Kafka, a broker stops when it has no usable log directory left. It can be started again
        after `free_disk`.
        """
        self._embedded.set_disk_full(True)

    def free_disk(self) -> None:
        """Make writes succeed again."""
        self._embedded.set_disk_full(False)

    @blocking
    def advance(self, delay_ms: int) -> None:
        """Move the broker's clock forward by `delay_ms`, and run each timer at its own time.

        This method returns when everything that became due is done: responses are queued, and writes are
        finished. It can be called from any thread. The clocks of clients do not move.

        Periodic tasks, such as retention, run at most 200 times and once at the end, however long `delay_ms`
        is, so a week takes milliseconds. If this call is interrupted, the clock stops where it is.
        """
        check_delay(delay_ms)
        self._embedded.advance(delay_ms)

    def denials(self, since_s: float = 0.0) -> list[Denial]:
        """Return the requests that the broker has denied, in order.

        Repeated requests are returned once. `since_s` is a time in seconds since 1970.
        """
        return self._embedded.denials(since_s)

    def _recorders(self) -> list[Recorder]:
        return [self.requests]

    def _own_bootstrap_servers(self) -> str:
        return self._embedded.node_bootstrap if self._has_defect else self.bootstrap_servers

    def _take_errors(self) -> list[str]:
        """Remove and return the unexpected exceptions inside the broker, which are bugs of kwire, as text."""
        return self._embedded.take_errors()

    def _note_start(self) -> None:
        STARTED_BROKERS.add(self)

    def _directory(self) -> str | None:
        return self._embedded.log_dir

    def _now_ms(self) -> int:
        now_ms = self._embedded.now_ms()
        return super()._now_ms() if now_ms is None else now_ms

    def _call(self, operation: Callable[[BlockingClient], T]) -> T:
        __tracebackhide__ = True
        if not isinstance(self._embedded, EmbeddedBroker):
            return operation(self._embedded.client(self._timeout_s, self._client_properties()))
        self._embedded.check_alive()
        return super()._call(operation)

    def _call_as(self, properties: Mapping[str, str], operation: Callable[[BlockingClient], T]) -> T:
        if not isinstance(self._embedded, EmbeddedBroker):
            return operation(self._embedded.client(self._timeout_s, properties))
        return super()._call_as(properties, operation)

    def _sleep(self, seconds: float) -> None:
        self._embedded.check_alive()  # its error says more than a timeout
        super()._sleep(seconds)


class AioBroker(AioEmbeddedKafka):
    """The methods of `Broker`, for `await`."""

    restart = awaitable(Broker.restart, completes=True)
    crash = awaitable(Broker.crash, completes=True)
    hang = awaitable(Broker.hang, completes=True)
    resume = awaitable(Broker.resume, completes=True)
    fill_disk = awaitable(Broker.fill_disk, completes=True)
    free_disk = awaitable(Broker.free_disk, completes=True)
    advance = awaitable(Broker.advance)
    denials = awaitable(Broker.denials)


def _class_of(process: str) -> type[EmbeddedBroker | ChildBroker]:
    if process == "child":
        from kwire.testing.child_broker import ChildBroker

        return ChildBroker
    if process != "thread":
        raise ValueError(f"process={process!r}: pass 'thread' or 'child'")
    return EmbeddedBroker


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
