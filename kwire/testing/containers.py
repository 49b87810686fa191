"""A `KafkaContainer` for test suites that use testcontainers, without a container.

    from kwire.testing.containers import KafkaContainer   # instead of testcontainers.kafka

    with KafkaContainer() as kafka:
        producer = KafkaProducer(bootstrap_servers=kafka.get_bootstrap_server())

It has the methods and defaults of testcontainers 4, and runs a `Broker`, which is `kafka.broker`. Arguments
that concern only the container, such as its image or name, have no effect. Networks, volumes and commands
raise NotImplementedError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kwire.testing.arguments import check_text
from kwire.testing.broker import Broker, Process
from kwire.testing.event_loop import may_block

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

HOST: Final = "127.0.0.1"
PORT: Final = 9093
"""The port of the client listener in the container."""
PROTOCOL: Final = "PLAINTEXT"
SECURITY_HINT: Final = (
    "use a kwire.testing.Broker: with tls= it has SSL, with users= SASL_PLAINTEXT, with both SASL_SSL"
)
IMAGE: Final = "confluentinc/cp-kafka:7.6.0"
ENVIRONMENT: Final = {
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
IGNORED_SETTINGS: Final = {
    "advertised.listeners",
    "broker.id",
    "control.plane.listener.name",
    "controller.listener.names",
    "controller.quorum.voters",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "log.dirs",
    "metadata.log.dir",
    "node.id",
    "process.roles",
    "security.inter.broker.protocol",
    "zookeeper.connect",
}
"""Settings of listeners, directories and node roles in a container. They have no effect here."""
UNSUPPORTED: Final = {
    "copy_from_container",
    "copy_into_container",
    "exec",
    "get_docker_client",
    "get_logs",
    "get_wrapped_container",
    "with_command",
    "with_copy_into_container",
    "with_network",
    "with_network_aliases",
    "with_tmpfs_mount",
    "with_volume_mapping",
}
"""Methods that cannot work without a container."""


class KafkaContainer:
    """An embedded broker with the interface of testcontainers' `KafkaContainer`."""

    def __init__(
        self,
        image: str = IMAGE,
        port: int = PORT,
        wait_strategy_check_string: str = "",
        listener_name: str = PROTOCOL,
        security_protocol: str = PROTOCOL,
        *,
        env: Mapping[str, str] | None = None,
        process: Process = "thread",
        **kwargs: object,
    ) -> None:
        """Configure the broker by `env`, as in Kafka's container images. `process` is that of `Broker`.

        Raises NotImplementedError for security protocols except PLAINTEXT, and for networks, volumes and
        commands. All other arguments except `port` are ignored.
        """
        if security_protocol != PROTOCOL:
            raise NotImplementedError(
                f"security_protocol={security_protocol!r}: this listener is {PROTOCOL}; {SECURITY_HINT}"
            )
        _check_arguments(kwargs)
        self.image = image
        self.port = port
        self.env: dict[str, str] = {**ENVIRONMENT, **(env or {})}
        self.kraft_enabled = False
        self.cluster_id: str | None = None
        self._bound: dict[int, int] = {}
        self._process: Process = process
        self._broker: Broker | None = None

    def __getattr__(self, name: str) -> Any:
        if name in UNSUPPORTED:
            raise NotImplementedError(_unsupported_message(name))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # --- configuration

    def with_kraft(self) -> Self:
        """Set `kraft_enabled`. This has no other effect, since the broker always uses KRaft."""
        self.kraft_enabled = True
        return self

    def with_cluster_id(self, cluster_id: str) -> Self:
        """Set the cluster id, which is random by default."""
        check_text("cluster_id", cluster_id)
        self.cluster_id = cluster_id
        return self

    def with_env(self, key: str, value: object) -> Self:
        """Set a broker config, such as `KAFKA_NUM_PARTITIONS`. `IGNORED_SETTINGS` have no effect."""
        self.env[key] = str(value)
        return self

    def with_envs(self, **variables: object) -> Self:
        """Set several broker configs."""
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def with_env_file(self, env_file: str | os.PathLike[str]) -> Self:
        """Set broker configs from a file with lines such as `KAFKA_NUM_PARTITIONS=3`. Raises OSError."""
        with open(env_file, encoding="utf-8") as lines:
            for line in lines:
                key, is_setting, value = line.strip().removeprefix("export ").partition("=")
                if is_setting and not key.startswith("#"):
                    self.with_env(key.strip(), value.strip().strip("\"'"))
        return self

    def with_bind_ports(self, container: str | int, host: str | int | None = None) -> Self:
        """Use port `host` of this machine for the port `container`. Without `host`, any free port is used."""
        if host is not None:
            self._bound[_port(str(container).partition("/")[0])] = _port(host)
        return self

    def with_exposed_ports(self, *ports: str | int) -> Self:
        """Do nothing: the listener is always reachable."""
        return self

    def with_name(self, name: str) -> Self:
        """Do nothing: no container needs a name."""
        return self

    def with_kwargs(self, **kwargs: object) -> Self:
        """Raise NotImplementedError for a network, volumes or a command. Other arguments have no effect."""
        _check_arguments(kwargs)
        return self

    def waiting_for(self, strategy: object) -> Self:
        """Do nothing: `start` returns once the broker serves requests."""
        return self

    def maybe_emulate_amd64(self) -> Self:
        """Do nothing: there is no image."""
        return self

    # --- start and stop

    def start(self, timeout: float = 30) -> Self:
        """Start the broker, and return when it serves requests. `timeout` has no effect.

        Raises ConfigError or BindError, and NotImplementedError for unsupported security settings.
        """
        broker = Broker(self._settings(), process=self._process)
        if self.cluster_id is not None:
            broker._embedded.set_cluster_id(self.cluster_id)
        with may_block():  # like the start of a container
            broker.start()
        self._broker = broker
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop the broker and remove its data. The arguments have no effect."""
        broker, self._broker = self._broker, None
        if broker is not None:
            with may_block():
                broker.stop()

    def reload(self) -> None:
        """Do nothing: there is no container state to load."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- address

    @property
    def broker(self) -> Broker:
        """The embedded broker. Raises RuntimeError before `start` and after `stop`."""
        if self._broker is None:
            raise RuntimeError("the container is not running: call start(), or use it in a with statement")
        return self._broker

    @property
    def status(self) -> str:
        """The status that a container would have: "running" or "not_started"."""
        return "running" if self._broker is not None and self._broker.is_running else "not_started"

    def get_bootstrap_server(self) -> str:
        """Return the broker's host:port."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}"

    def get_container_host_ip(self) -> str:
        """Return the broker's host."""
        return HOST

    def get_exposed_port(self, port: int) -> int:
        """Return the broker's port for the container's only port. Raises ValueError for other ports."""
        if str(port) != str(self.port):
            raise ValueError(f"port {port} is not exposed: use {self.port}")
        return int(self.broker.bootstrap_servers.rpartition(":")[2])

    def _settings(self) -> dict[str, str]:
        from kwire.broker.config.authorizer import AUTHORIZER_KEYS
        from kwire.broker.config.broker_keys import BROKER_KEYS
        from kwire.broker.config.properties import environment_settings

        given = {name: value for name, (_, value) in environment_settings(self.env).items()}
        _check_security(given)
        settings = {
            name: value
            for name, value in given.items()
            if name in BROKER_KEYS.keys() | AUTHORIZER_KEYS and name not in IGNORED_SETTINGS
        }
        if self.port in self._bound:
            settings["listeners"] = f"PLAINTEXT://{HOST}:{self._bound[self.port]}"
        return settings


def _port(given: str | int) -> int:
    if not str(given).isdecimal():
        raise ValueError(f"a port is a number, such as 9093, not {given!r:.100}")
    return int(given)


def _check_arguments(kwargs: Mapping[str, object]) -> None:
    """Raise NotImplementedError for container arguments that have no equivalent in a broker."""
    for name in ("network", "network_aliases", "command", "volumes"):
        if kwargs.get(name):
            raise NotImplementedError(_unsupported_message(name))


def _check_security(settings: Mapping[str, str]) -> None:
    """Raise NotImplementedError for security settings that this class does not support."""
    listeners = settings.get("listener.security.protocol.map", "").split(",")
    named = [settings.get("security.inter.broker.protocol"), *(one.partition(":")[2] for one in listeners)]
    for protocol in filter(None, named):
        if protocol.strip().upper() != PROTOCOL:
            raise NotImplementedError(
                f"security protocol {protocol}: this listener is {PROTOCOL}; {SECURITY_HINT}"
            )


def _unsupported_message(name: str) -> str:
    return f"{name}: there is no container: use the attribute `broker`"
