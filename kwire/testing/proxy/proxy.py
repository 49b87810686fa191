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
from kwire.testing.doubles import Subject, check_doubles, explain_failure
from kwire.testing.exchange import CLIENT_ID
from kwire.testing.faults import Faults
from kwire.testing.kafka import TIMEOUT_SECONDS, Kafka
from kwire.testing.recorder import Recorder

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from kwire.client.security import Security
    from kwire.testing.proxy.thread import ProxyThread

RETRY_SECONDS = 0.05
PROXY = Subject("proxy", "kwire.testing.proxy.thread", "start the Proxy before that, or in another process")


class Proxy(Kafka):
    """A proxy in front of a Kafka cluster, with faults and a record of the requests of clients.

    It has all methods of `Kafka`. They connect to the cluster without the proxy, so their requests are not
    recorded, and get no faults.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_SECONDS,
    ) -> None:
        """Configure a proxy; `start`, or a `with` statement, starts it.

        `bootstrap_servers` are brokers of the cluster, as host:port, separated by commas. `properties` are
        security settings of the Java client. With SSL or SASL_SSL, the proxy connects to the cluster over
        TLS; clients connect to the proxy without TLS in any case. If the cluster requires SASL, clients
        authenticate through the proxy with their own credentials. Those in `properties` are for the methods
        of this object. `timeout_s` is the timeout of the start, and of each method that sends requests.
        """
        super().__init__(bootstrap_servers, timeout_s=timeout_s, properties=properties)
        self.requests = Recorder()
        """The requests of clients, with their responses."""
        self.faults = Faults()
        """The faults to inject into requests of clients."""
        self._thread: ProxyThread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

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

    def stop(self) -> None:
        """Close all connections and listeners. Does nothing if the proxy is not running."""
        self.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.request_end("STOPPED")

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
