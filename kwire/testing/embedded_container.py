"""The interface of testcontainers' `DockerContainer`, with a `Broker` instead of a container.

Methods that only a container can have raise NotImplementedError, and name what replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from kwire.testing.arguments import check_text
from kwire.testing.broker import Broker, Process
from kwire.testing.container_settings import broker_settings, security_of
from kwire.testing.event_loop import may_block
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from kwire.testing.acl import Acl
    from kwire.testing.tls import Tls

HOST: Final = "127.0.0.1"
PLAINTEXT: Final = "PLAINTEXT"

FILES: Final = "set broker configs with `with_env`, and create data with `broker.produce`"
SETTINGS: Final = "set broker configs with `with_env`"
VOLUMES: Final = "use kwire.testing.Broker(log_dir=...), which keeps its data in this directory"
NETWORKS: Final = "run the image of kwire (docker/README.md) for clients in other containers"
REFUSED_ARGUMENTS: Final = {
    "command": SETTINGS,
    "network": NETWORKS,
    "network_aliases": NETWORKS,
    "transferables": FILES,
    "volumes": VOLUMES,
}
"""Arguments of containers that a broker cannot have, and what replaces them."""


class ExecResult(NamedTuple):
    """The type of the result of a command in a container."""

    exit_code: int | None
    output: bytes


class EmbeddedContainer:
    """A broker with the interface of testcontainers' `DockerContainer`."""

    def __init__(
        self,
        image: str,
        port: int,
        docker_client_kw: Mapping[str, object] | None = None,
        command: str | Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        ports: Sequence[str | int] | None = None,
        volumes: Sequence[tuple[str, str, str]] | None = None,
        network: object = None,
        network_aliases: Sequence[str] | None = None,
        transferables: Sequence[object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        tls: bool | Tls = False,
        acls: Sequence[Acl] | None = None,
        process: Process = "thread",
        **kwargs: object,
    ) -> None:
        """Configure the broker by `env`, as in Kafka's container images.

        `users`, `tls`, `acls` and `process` are those of `Broker`. Raises NotImplementedError for a command,
        networks, volumes and files. Other arguments concern only a container, and have no effect.
        """
        if kwargs.pop("port_to_expose", None):
            raise ValueError("Use `port` instead of `port_to_expose`")
        refused = {
            "command": command,
            "volumes": volumes,
            "network": network,
            "network_aliases": network_aliases,
            "transferables": transferables,
        }
        _check_arguments({**kwargs, **refused})
        self.image = image
        self.env: dict[str, str] = dict(env or {})
        self.ports: dict[str, int | None] = {str(port): None}
        """Ports of the container, and the port of this machine for each; None for any free port."""
        self._port = port
        self._listener_name = self._security_protocol = PLAINTEXT
        self._cluster_id: str | None = None
        self._users, self._tls, self._acls = users, tls, acls
        self._process: Process = process
        self._broker: Broker | None = None
        self.with_exposed_ports(*(ports or ()))

    # --- configuration

    def with_env(self, key: str, value: object) -> Self:
        """Set a broker config, such as `KAFKA_NUM_PARTITIONS`.

        Configs of listeners, directories and roles have no effect, except that `KAFKA_LISTENERS` and
        `KAFKA_LISTENER_SECURITY_PROTOCOL_MAP` set the security protocol of the port for clients.
        """
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
        self.ports[str(_number(container))] = None if host is None else _number(host)
        return self

    def with_exposed_ports(self, *ports: str | int) -> Self:
        """Add ports to `ports`. Only the port for clients can be reached, and it always can."""
        for port in ports:
            self.ports.setdefault(str(_number(port)))
        return self

    def with_name(self, name: str) -> Self:
        """Do nothing: no container needs a name."""
        return self

    def with_kwargs(self, **kwargs: object) -> Self:
        """Raise NotImplementedError for networks, volumes or a command. Other arguments have no effect."""
        _check_arguments(kwargs)
        return self

    def with_tmpfs_mount(self, container_path: str, size: str | None = None) -> Self:
        """Do nothing without a size, because the mount only makes a container faster.

        Raises NotImplementedError if there is a size.
        """
        if size is not None:
            _refuse("with_tmpfs_mount(size=...)", "`broker.fill_disk` makes the broker's disk full")
        return self

    def waiting_for(self, strategy: object) -> Self:
        """Do nothing: `start` returns once the broker serves requests."""
        return self

    def maybe_emulate_amd64(self) -> Self:
        """Do nothing: there is no image."""
        return self

    def configure(self) -> None:
        """Do nothing. `start` calls this method first, so that subclasses can set broker configs."""

    # --- start and stop

    def start(self, timeout: float = 30) -> Self:
        """Start the broker, and return when it serves requests. Has no effect if the broker is running.

        In an event loop this method blocks the loop, as the start of a container does. `timeout` has no
        effect. Raises ConfigError, BindError, ValueError for a security protocol without users, and
        NotImplementedError for certificates.
        """
        if self._broker is not None:
            return self
        self.configure()
        security = security_of(
            self.env,
            self._port,
            self._listener_name,
            self._security_protocol,
            users=self._users,
            tls=self._tls,
            acls=self._acls,
        )
        broker = Broker(
            broker_settings(self.env, has_users=security.users is not None),
            users=security.users,
            tls=security.tls,
            acls=security.acls,
            process=self._process,
        )
        if self._cluster_id is not None:
            broker._embedded.set_cluster_id(self._cluster_id)
        if port := self.ports.get(str(self._port)):
            broker._embedded.set_port(port)
        with may_block():
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
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.stop()

    # --- state and address

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
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(self._port)}"

    def get_container_host_ip(self) -> str:
        """Return the broker's host."""
        return HOST

    def get_exposed_port(self, port: str | int) -> int:
        """Return the port of this machine for the port for clients. Raises ValueError for other ports."""
        if str(port) != str(self._port):
            raise ValueError(f"port {port} is not exposed: use {self._port}")
        return int(self.broker.bootstrap_servers.rpartition(":")[2])

    # --- what only a container has. The types of results are those of testcontainers, so that type checkers
    # accept a suite before it is changed.

    def exec(self, command: object) -> ExecResult:
        """Raise NotImplementedError: `broker` has methods for topics, records and groups."""
        _refuse("exec", "`broker` has methods for topics, records and groups, such as `broker.create_topic`")

    def get_logs(self) -> tuple[bytes, bytes]:
        """Raise NotImplementedError: pytest captures the broker's log."""
        _refuse(
            "get_logs", "`start` returns when the broker serves requests, and its log is in pytest's caplog"
        )

    def wait(self) -> int:
        """Raise NotImplementedError: `broker.is_running` is the state."""
        _refuse("wait", "use `broker.is_running`")

    def get_wrapped_container(self) -> NoReturn:
        """Raise NotImplementedError: `broker` can be suspended, killed and restarted."""
        _refuse("get_wrapped_container", "use `broker.hang`, `broker.crash` or `broker.restart`")

    def get_container_id(self) -> str:
        """Raise NotImplementedError: `broker` is the broker."""
        _refuse("get_container_id", "use `broker`")

    def get_container_info(self) -> NoReturn:
        """Raise NotImplementedError: `status` and `broker` have the state."""
        _refuse("get_container_info", "use `status` or `broker`")

    def get_docker_client(self) -> NoReturn:
        """Raise NotImplementedError: `broker` is the broker."""
        _refuse("get_docker_client", "use `broker`")

    def with_command(self, command: str | Sequence[str]) -> Self:
        """Raise NotImplementedError: `with_env` sets broker configs."""
        _refuse("with_command", SETTINGS)

    def with_network(self, network: object) -> Self:
        """Raise NotImplementedError: the image of kwire has a network."""
        _refuse("with_network", NETWORKS)

    def with_network_aliases(self, *aliases: str) -> Self:
        """Raise NotImplementedError: the image of kwire has a network."""
        _refuse("with_network_aliases", NETWORKS)

    def with_volume_mapping(self, host: str | os.PathLike[str], container: str, mode: str = "ro") -> Self:
        """Raise NotImplementedError: `Broker` has the argument `log_dir`."""
        _refuse("with_volume_mapping", VOLUMES)

    def with_copy_into_container(
        self, transferable: object, destination_in_container: str, mode: int = 0o644
    ) -> Self:
        """Raise NotImplementedError: `with_env` sets broker configs, `broker.produce` creates data."""
        _refuse("with_copy_into_container", FILES)

    def copy_into_container(
        self, transferable: object, destination_in_container: str, mode: int = 0o644
    ) -> None:
        """Raise NotImplementedError: `with_env` sets broker configs, `broker.produce` creates data."""
        _refuse("copy_into_container", FILES)

    def copy_from_container(self, source_in_container: str, destination_on_host: os.PathLike[str]) -> None:
        """Raise NotImplementedError: `Broker` has the argument `log_dir`."""
        _refuse("copy_from_container", VOLUMES)

    def create_file(self, content: bytes, path: str) -> None:
        """Raise NotImplementedError: `with_env` sets broker configs, `broker.produce` creates data."""
        _refuse("create_file", FILES)

    def tc_start(self) -> None:
        """Raise NotImplementedError: `start` needs no script."""
        _refuse("tc_start", "override `configure` to set broker configs before the start")

    def _set_cluster_id(self, cluster_id: str) -> None:
        check_text("cluster_id", cluster_id)
        self._cluster_id = cluster_id


def _number(port: str | int) -> int:
    """Return the number of a port such as 9093, "9093" or "9093/tcp"."""
    number = str(port).partition("/")[0]
    if not number.isdecimal():
        raise ValueError(f"a port is a number, such as 9093, not {port!r:.100}")
    return int(number)


def _check_arguments(arguments: Mapping[str, object]) -> None:
    for name, replacement in REFUSED_ARGUMENTS.items():
        if arguments.get(name):
            _refuse(name, replacement)


def _refuse(name: str, replacement: str) -> NoReturn:
    raise NotImplementedError(f"{name}: there is no container: {replacement}")
