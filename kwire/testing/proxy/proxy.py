"""A proxy for tests, in a thread of the test's process, in front of a Kafka cluster that is running already.

    with Proxy("127.0.0.1:9092") as proxy:
        producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers)
        proxy.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
        ...
        assert proxy.requests.find("Produce", topic="orders")

Clients connect to the proxy only: it replaces the addresses of brokers in responses by its own. It has one
listener for each bootstrap server and each broker. This module imports quickly. The event loop's modules are
imported in the proxy's thread on the first start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kwire.host.system_time import monotonic
from kwire.testing.awaitable import awaitable
from kwire.testing.doubles import Subject, check_doubles, explain_failure
from kwire.testing.event_loop import blocking, check_with_statement
from kwire.testing.exchange import CLIENT_ID
from kwire.testing.faults import Faults
from kwire.testing.kafka import TIMEOUT_SECONDS, AioKafka, Kafka
from kwire.testing.recorder import MAX_BYTES, MAX_EXCHANGES, Recorder

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from kwire.client.security import Security
    from kwire.testing.history import History
    from kwire.testing.proxy.thread import ProxyThread

RETRY_SECONDS = 0.05
PROXY = Subject("proxy", "kwire.testing.proxy.thread", "start the Proxy before that, or in another process")


class Proxy(Kafka):
    """A proxy in front of a Kafka cluster, with faults and a record of the requests of clients.

    It has all methods of `Kafka`. They connect to the cluster without the proxy, so their requests are not
    recorded, and get no faults.
    """

    _variable = "proxy"

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_SECONDS,
        max_recorded_requests: int = MAX_EXCHANGES,
        max_recorded_bytes: int = MAX_BYTES,
    ) -> None:
        """Configure a proxy; `start`, or a `with` statement, starts it.

        `bootstrap_servers` are brokers of the cluster, as host:port, separated by commas. `properties` are
        security settings of the Java client. With SSL or SASL_SSL, the proxy connects to the cluster over
        TLS; clients connect to the proxy without TLS in any case. If the cluster requires SASL, clients
        authenticate through the proxy with their own credentials. Those in `properties` are for the methods
        of this object. `timeout_s` is the timeout of the start, and of each method that sends requests.

        `requests` keeps the last `max_recorded_requests` requests, and at most `max_recorded_bytes` of
        requests and responses. It does not keep responses longer than 1/64 of `max_recorded_bytes`.
        """
        super().__init__(bootstrap_servers, timeout_s=timeout_s, properties=properties)
        self.requests = Recorder(max_recorded_requests, max_recorded_bytes)
        """The requests of clients, with their responses."""
        self.requests.source = self
        self.faults = Faults()
        """The faults to inject into requests of clients."""
        self._thread: ProxyThread | None = None

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        check_with_statement("Proxy(...) as proxy")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.aio.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aio.stop()

    @property
    def aio(self) -> AioProxy:
        """The methods of this object, to be awaited in asyncio or trio."""
        return AioProxy(self)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the proxy, for clients: host:port, separated by commas."""
        if self._thread is None:
            raise RuntimeError("the proxy is not running: call start(), or use it in a with statement")
        return self._thread.bootstrap

    @property
    def is_running(self) -> bool:
        """Whether the proxy has started, and has not stopped since."""
        return self._thread is not None and self._thread.is_alive()

    @blocking
    def start(self) -> None:
        """Start the proxy, and return when clients can connect.

        Raises RuntimeError if the proxy is running already, ValueError for invalid arguments, and OSError if
        no broker of the cluster can be reached in time. Other errors are those of the methods of `Kafka`.
        """
        from kwire.client.security import parse_security
        from kwire.testing.blocking_client import parse_address

        check_doubles(PROXY)
        if self.is_running:
            raise RuntimeError("the proxy is running already")
        servers = [parse_address(text) for text in self._bootstrap_servers.split(",")]
        security = parse_security(self._properties)
        self._check_reachable(servers, security)
        try:
            from kwire.host.host import PeerAddress
            from kwire.testing.proxy.thread import ProxyThread

            addresses = [PeerAddress(*server) for server in servers]
            thread = ProxyThread(addresses, security.tls, self.requests, self.faults)
            self._thread = thread
            thread.launch()
            thread.wait_until_started()
        except BaseException as error:
            self.stop()
            explain_failure(error, PROXY)
            raise

    @blocking
    def stop(self) -> None:
        """Close all connections and listeners. Does nothing if the proxy is not running."""
        self.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.request_end("STOPPED")

    @blocking
    def history(self) -> History:
        """Return the history that the recorded requests show, with the final records of their topics.

        Call `check` of the result. See `History.of`.
        """
        from kwire.testing.history import History

        return History.of(self.requests)

    def _check_reachable(self, servers: list[tuple[str, int]], security: Security) -> None:
        """Connect to one of the servers. Raises OSError if that fails until the timeout."""
        from kwire.client.connection import Connection
        from kwire.client.errors import Disconnected, NoReachableBroker

        deadline = monotonic() + self._timeout_s
        while True:
            for host, port in servers:
                rest = max(RETRY_SECONDS, deadline - monotonic())
                try:
                    Connection(host, port, CLIENT_ID, rest, security).close()
                except Disconnected as error:
                    reason = str(error)
                else:
                    return
            if monotonic() >= deadline:
                raise NoReachableBroker(
                    f"the proxy cannot reach a broker at {self._bootstrap_servers} within "
                    f"{self._timeout_s:g} s ({reason}): start the cluster first"
                )
            self._sleep(RETRY_SECONDS)

    def _own_bootstrap_servers(self) -> str:
        return self._bootstrap_servers


class AioProxy(AioKafka):
    """The methods of `Proxy`, for `await`."""

    start = awaitable(Proxy.start, completes=True, undo="stop")
    stop = awaitable(Proxy.stop, completes=True)
    history = awaitable(Proxy.history)
