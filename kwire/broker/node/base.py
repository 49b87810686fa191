"""The parts common to all nodes: brokers, controllers, and nodes with both roles.

A node is synchronous and does I/O only through its `Host` and its `Disk`. The network layer calls
`handle_frame` for each request. At the end of each turn of the event loop it calls `end_turn` and sends the
responses that the channels hold. Tests run the same node on a virtual host.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from kwire.broker.api.dispatch.dispatcher import Dispatcher
from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.gate import Gate
from kwire.broker.api.request.node_quotas import NodeClientQuotas
from kwire.broker.api.request.ports import Endpoint, Features
from kwire.broker.config import BrokerConfig
from kwire.broker.config.authorizer import authorizer_settings
from kwire.broker.controller.port import ControllerPort
from kwire.broker.controller.topics import new_uuid
from kwire.broker.metadata.features import KRAFT_VERSION, served_features
from kwire.broker.metadata.image import RESOURCE_BROKER, MetadataImage
from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.broker.node.format import (
    all_directories,
    format_directories,
    metadata_directory,
    name_metadata_directory_in_errors,
)
from kwire.broker.node.metadata import NodeMetadata
from kwire.broker.security.settings import listener_security, scram_mechanisms
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.dirs.meta_properties import (
    StartRefused,
    assign_directory_ids,
    load_meta_properties,
    needs_format,
)
from kwire.broker.storage.disk import Disk
from kwire.host.host import Host
from kwire.host.loggers import known_loggers

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import NodeRole
    from kwire.broker.api.security.sasl_session import SaslSessions
    from kwire.broker.metadata.delta import MetadataDelta
    from kwire.broker.security.image_users import ImageUsers


class NodeBase(ABC):
    """A node. Callers must call `start` before any other method."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        disk: Disk,
        log_manager: LogManager,
        *,
        on_caught_up: Callable[[], None] = lambda: None,
        on_unfenced: Callable[[], None] = lambda: None,
        on_fatal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_unfenced` is called when the broker has been unfenced and clients may connect.

        `on_caught_up` is called when the broker may open its logs. `on_fatal` is called with the reason why
        the node cannot continue; the caller must then shut the node down.
        """
        self.config = config
        self.host = host
        self.node_id = config.node_id
        self.bound_ports: dict[str, int] = {}
        """The bound port of each listener by name. The network layer sets this attribute."""
        self.host_name = "localhost"
        """The host name to advertise for listeners on all interfaces. The network layer sets it."""
        self.config_changed: list[Callable[[], None]] = []
        """Callbacks to call after dynamic settings of the node have changed."""
        self.log_manager = log_manager
        self.stopping = False
        self._logger = host.logger("kwire.node")
        self._disk = disk
        self._on_fatal = on_fatal
        self._on_shutdown_allowed: Callable[[], None] = lambda: None
        self.metadata = NodeMetadata(
            config,
            host,
            log_manager,
            disk,
            on_caught_up=on_caught_up,
            on_unfenced=on_unfenced,
            on_shutdown_allowed=lambda: self._on_shutdown_allowed(),
            on_failed=on_fatal,
        )
        self.controller = self.metadata.controller
        """The active controller, on this node or another one."""
        self.forwarding = self.metadata.remote
        self.sessions: SaslSessions | None = None
        """The SASL sessions; None until a client has connected to a SASL listener."""
        self.quorum = self.metadata.quorum
        self.lifecycle = self.metadata.lifecycle
        self.token_hmacs = self.metadata.token_hmacs
        self.metadata.publisher.subscribe(self._update_tokens)
        self.gate = Gate(lambda: self.image)
        authorizer = authorizer_settings(config.static_settings)
        if authorizer is not None:
            from kwire.broker.node.acl_publisher import AclPublisher

            acls = AclPublisher(authorizer, self.gate, host, lambda: self.quorum.high_watermark)
            self.metadata.publisher.subscribe(acls.update)
        self.client_quotas = NodeClientQuotas(config, host)
        self.metadata.publisher.subscribe(self.client_quotas.update)
        self._dispatcher = Dispatcher(self.as_node_role)

    # --- life cycle

    def start(self) -> None:
        """Replay the metadata. On a new combined node, format the log directories first.

        Raises StartRefused for a new node with only one role, which must be formatted before the start.
        Raises FormatError, StorageError or CorruptMetadata.
        """
        config, rng = self.config, self.host.random("formatting")
        owners = load_meta_properties(self._disk, all_directories(config))
        is_new = needs_format(
            self._disk, owners, metadata_dir=metadata_directory(config), node_id=self.node_id
        )
        is_both = config.is_broker and config.is_controller
        if is_new and not is_both:
            raise StartRefused(
                f"no meta.properties in {', '.join(owners.unformatted)}: format the directories with kwire "
                f"format and the cluster id"
            )
        self.log_manager.lock()
        if is_new:
            now_ms = self.host.now_ms()
            for line in format_directories(config, self._disk, rng, now_ms, ignore_formatted=True):
                self._logger.info("%s", line[:1].upper() + line[1:])
        else:
            assign_directory_ids(self._disk, owners, lambda: new_uuid(rng), self._logger)
        self.log_manager.load_meta_properties()
        with name_metadata_directory_in_errors(config):
            self.metadata.start(self.bound_ports, self.host_name)

    def controlled_shutdown(self, on_done: Callable[[], None]) -> None:
        """Wait for the controller to move this broker's leaders, resign as controller, then call `on_done`.

        KIP-631, KIP-595. No leaders are moved if this is the only broker and the only voter, or without
        controlled.shutdown.enable.
        """
        others = self.image.brokers.keys() - {self.node_id}
        hands_over = self.lifecycle.stage is LifecycleStage.UNFENCED and (
            others or not self.quorum.is_sole_voter
        )
        if hands_over and self.config.controlled_shutdown_enable:
            self._on_shutdown_allowed = lambda: self.metadata.resign(on_done)
            self.lifecycle.begin_controlled_shutdown()
        else:
            self.metadata.resign(on_done)

    def begin_shutdown(self) -> None:
        """Complete delayed requests, so that the connections can drain."""
        self.stopping = True
        if self.sessions is not None:
            self.sessions.send_delayed_failures()

    @abstractmethod
    def kill(self) -> None:
        """Kill the child processes of this node, as part of a simulated SIGKILL."""

    def finish_shutdown(self, *, workers_are_idle: bool = True) -> None:
        """Write staged appends, flush and checkpoint the logs, and mark the shutdown as clean.

        The shutdown is not clean if a worker may still be syncing a file.
        """
        self.end_turn()
        self.metadata.shutdown()
        self.log_manager.shutdown(
            self.host.now_ms(),
            broker_epoch=self.lifecycle.broker_epoch,
            run_all=self.host.run_all_in_workers,
            is_complete=workers_are_idle,
        )

    # --- turns

    @property
    @abstractmethod
    def as_node_role(self) -> NodeRole:
        """This node with the interface that request handlers use."""

    @abstractmethod
    def end_turn(self, send_responses: Callable[[], None] | None = None) -> None:
        """Write the appends of this turn. `send_responses` is called before follow-up appends are written."""

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        """Handle a request (without its size prefix). Callers must close the connection after WireError."""
        self._dispatcher.dispatch(channel, frame, self.host.now_ms())

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Return whether the request must wait for the responses to earlier requests of its connection."""
        return self._dispatcher.must_wait(channel, frame)

    def channel_opened(self, channel: Channel) -> None:
        """Prepare a new connection. A client of a SASL listener must authenticate first."""
        channel.quotas = self.client_quotas
        security = listener_security(self.config, channel.listener)
        if security is not None:
            if self.sessions is None:
                # Imported here to shorten the start of nodes without SASL.
                from kwire.broker.api.security.sasl_session import SaslSessions

                self.sessions = SaslSessions(self.as_node_role)
            self.sessions.begin(channel, security)

    def channel_closed(self, channel: Channel) -> None:
        """Clean up after a closed connection and cancel its delayed request."""
        complete = channel.fetches.complete
        channel.close()
        if complete is not None:
            complete()

    # --- data for request handlers

    @property
    def own_controller(self) -> ControllerPort:
        """The controller on this node. Only handlers of controller APIs use it."""
        assert self.metadata.own_controller is not None
        return self.metadata.own_controller

    @property
    def cluster_id(self) -> str:
        return self.log_manager.cluster_id

    @cached_property
    def users(self) -> ImageUsers:
        """The users that have SCRAM credentials or delegation tokens."""
        # Imported here, because it loads OpenSSL, to shorten the start of nodes without SASL.
        from kwire.broker.security.delegation_tokens import token_settings
        from kwire.broker.security.image_users import ImageUsers

        return ImageUsers(
            lambda: self.image,
            token_settings(self.config).secret,
            self.host,
            lambda: scram_mechanisms(self.config),
            is_running=lambda: not self.stopping,
        )

    def _update_tokens(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if image.delegation_tokens or delta.image.delegation_tokens:
            self.token_hmacs.update_tokens(image.delegation_tokens)
            self.users.update_tokens(image.delegation_tokens)

    @property
    def image(self) -> MetadataImage:
        return self.metadata.publisher.image

    def endpoints(self, node_ids: Iterable[int], listener: str) -> list[Endpoint]:
        """Return the brokers' endpoints on a listener. Brokers without this listener are omitted."""
        brokers = self.image.brokers
        return [
            Endpoint(node_id, endpoint.host, endpoint.port, broker.rack)
            for node_id in node_ids
            if (broker := brokers.get(node_id)) is not None
            and (endpoint := broker.endpoints.get(listener)) is not None
        ]

    def loggers(self) -> dict[str, logging.Logger]:
        """Return the loggers of the process, which all nodes in the process share."""
        return known_loggers()

    def features(self) -> Features:
        """Return the feature levels that ApiVersions responses contain."""
        image = self.image
        served = served_features()
        finalized = {name: level for name, level in image.features.items() if name in served}
        if self.quorum.kraft_version:
            finalized[KRAFT_VERSION] = self.quorum.kraft_version
        return Features(served, finalized, image.offset)

    # --- metadata

    def _apply_configs(self) -> None:
        """Apply the dynamic configuration of the cluster and of this node."""
        image = self.image
        self.config.update(
            image.config(RESOURCE_BROKER, ""), image.config(RESOURCE_BROKER, str(self.node_id))
        )
        for changed in self.config_changed:
            changed()
