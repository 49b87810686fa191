"""testcontainers' `KafkaContainer` and `RedpandaContainer` for test suites, without a container.

    from kwire.testing.containers import KafkaContainer   # instead of testcontainers.kafka

    with KafkaContainer() as kafka:
        producer = KafkaProducer(bootstrap_servers=kafka.get_bootstrap_server())

The classes have the methods and defaults of testcontainers 4, and run a `Broker`, which is `kafka.broker`.
Arguments that concern only the container, such as its image or name, have no effect. Networks, volumes and
commands raise NotImplementedError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kwire.testing.broker import Process
from kwire.testing.embedded_container import PLAINTEXT, EmbeddedContainer

if TYPE_CHECKING:
    from typing import Self

    from kwire.testing.acl import Acl
    from kwire.testing.tls import Tls

PORT: Final = 9093
"""The port of the client listener in the container of Apache Kafka."""
IMAGE: Final = "confluentinc/cp-kafka:7.6.0"
ENVIRONMENT: Final = {
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "10000000",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"
"""The id of each cluster that testcontainers starts with KRaft."""

REDPANDA_PORT: Final = 9092
SCHEMA_REGISTRY_PORT: Final = 8081
REDPANDA_IMAGE: Final = "docker.redpanda.com/redpandadata/redpanda:v23.1.13"


class KafkaContainer(EmbeddedContainer):
    """An embedded broker with the interface of testcontainers' `KafkaContainer`."""

    def __init__(
        self,
        image: str = IMAGE,
        port: int = PORT,
        wait_strategy_check_string: str = "",
        listener_name: str = PLAINTEXT,
        security_protocol: str = PLAINTEXT,
        *,
        docker_client_kw: Mapping[str, object] | None = None,
        command: str | Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        ports: Sequence[str | int] | None = None,
        volumes: Sequence[tuple[str, str, str]] | None = None,
        network: object = None,
        network_aliases: Sequence[str] | None = None,
        transferables: Sequence[object] | None = None,
        users: Mapping[str, str] | None = None,
        tls: bool | Tls = False,
        acls: Sequence[Acl] | None = None,
        process: Process = "thread",
        **kwargs: object,
    ) -> None:
        """Configure the broker by `env`, as in Kafka's container images.

        With a `security_protocol` that has SSL, the broker makes its own certificates. With SASL, pass
        `users`, or set the variable of the listener's JAAS configuration for PLAIN. The settings for clients
        are in `broker.client_config`. `users`, `tls`, `acls` and `process` are those of `Broker`.

        Raises NotImplementedError for a command, networks, volumes and files. All other arguments except
        `port` and `listener_name` are ignored.
        """
        super().__init__(
            image,
            port,
            docker_client_kw,
            command,
            {**ENVIRONMENT, **(env or {})},
            name,
            ports,
            volumes,
            network,
            network_aliases,
            transferables,
            users=users,
            tls=tls,
            acls=acls,
            process=process,
            **kwargs,
        )
        self.port = port
        self.listener_name = self._listener_name = listener_name
        self.security_protocol = self._security_protocol = security_protocol
        self.kraft_enabled = False
        self.cluster_id = CLUSTER_ID

    def with_kraft(self) -> Self:
        """Use the cluster id `cluster_id`, which is random otherwise. The broker always uses KRaft."""
        self.kraft_enabled = True
        self._set_cluster_id(self.cluster_id)
        return self

    def with_cluster_id(self, cluster_id: str) -> Self:
        """Set the cluster id."""
        self._set_cluster_id(cluster_id)
        self.cluster_id = cluster_id
        return self


class RedpandaContainer(EmbeddedContainer):
    """An embedded Apache Kafka broker with the interface of testcontainers' `RedpandaContainer`."""

    def __init__(
        self,
        image: str = REDPANDA_IMAGE,
        *,
        docker_client_kw: Mapping[str, object] | None = None,
        command: str | Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        ports: Sequence[str | int] | None = None,
        volumes: Sequence[tuple[str, str, str]] | None = None,
        network: object = None,
        network_aliases: Sequence[str] | None = None,
        transferables: Sequence[object] | None = None,
        users: Mapping[str, str] | None = None,
        tls: bool | Tls = False,
        acls: Sequence[Acl] | None = None,
        process: Process = "thread",
        **kwargs: object,
    ) -> None:
        """Configure the broker. `env` has Kafka's broker configs, as for `KafkaContainer`.

        `users`, `tls`, `acls` and `process` are those of `Broker`. Raises NotImplementedError for a command,
        networks, volumes and files. All other arguments are ignored.
        """
        super().__init__(
            image,
            REDPANDA_PORT,
            docker_client_kw,
            command,
            env,
            name,
            ports,
            volumes,
            network,
            network_aliases,
            transferables,
            users=users,
            tls=tls,
            acls=acls,
            process=process,
            **kwargs,
        )
        self.redpanda_port = REDPANDA_PORT
        self.schema_registry_port = SCHEMA_REGISTRY_PORT
        self.with_exposed_ports(SCHEMA_REGISTRY_PORT)

    def start(self, timeout: float = 10) -> Self:
        """Start the broker, as the base class does."""
        return super().start(timeout)

    def get_schema_registry_address(self) -> str:
        """Raise NotImplementedError: kwire has no schema registry."""
        raise NotImplementedError(
            "get_schema_registry_address: kwire has no schema registry: use the one of confluent-kafka for "
            'tests, SchemaRegistryClient.new_client({"url": "mock://"})'
        )

    def get_exposed_port(self, port: str | int) -> int:
        """Return the port of this machine for the port for clients.

        Raises ValueError for other ports, and NotImplementedError for that of the schema registry.
        """
        if str(port) == str(self.schema_registry_port):
            self.get_schema_registry_address()
        return super().get_exposed_port(port)
