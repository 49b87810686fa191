"""What every node is, be it a broker, a controller, or both: its directories, its metadata and its requests.

A node is synchronous and touches nothing of the world but its `Host` and its `Disk`. The shell calls
`handle_frame` for each frame, `end_turn` when a turn of its loop is over, and sends what the channels hold.
The same node runs in tests under a virtual host.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from kwire.broker.api.dispatch.dispatcher import Dispatcher
from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.ports import Endpoint, Features
from kwire.broker.config import BrokerConfig
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
    from kwire.broker.api.request.ports import CombinedRole
    from kwire.broker.api.security.sasl_session import SaslSessions
    from kwire.broker.metadata.delta import MetadataDelta
    from kwire.broker.security.image_users import ImageUsers


class NodeBase(ABC):
    """A node. Nothing may be asked of it before `start` has returned."""

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
        """`on_unfenced` is called when the broker is a part of its cluster, and clients may come.

        `on_fatal` is called with the reason once the node cannot go on, and should be shut down.
        """
        self.config = config
        self.host = host
        self.node_id = config.node_id
        self.bound_ports: dict[str, int] = {}
        """The port that each listener is bound to, by listener name: the shell fills it in."""
        self.host_name = "localhost"
        """What others call this machine, for listeners on every interface: of the shell, too."""
        self.config_changed: list[Callable[[], None]] = []
        """Called when settings of the node have changed while it runs."""
        self.log_manager = log_manager
        self.stopping = False
        self._logger = host.logger("kwire.node")
        self._disk = disk
        self._on_fatal = on_fatal
        self._on_shutdown_allowed: Callable[[], None] = lambda: None
        self._metadata = NodeMetadata(
            config,
            host,
            log_manager,
            disk,
            on_caught_up=on_caught_up,
            on_unfenced=on_unfenced,
            on_shutdown_allowed=lambda: self._on_shutdown_allowed(),
            on_failed=on_fatal,
        )
        self.controller = self._metadata.controller
        """The way to the active controller."""
        self.forwarding = self._metadata.remote
        self.sessions: SaslSessions | None = None
        """Of connections on listeners with SASL, once there has been one."""
        self.quorum = self._metadata.quorum
        self.lifecycle = self._metadata.lifecycle
        self.token_hmacs = self._metadata.token_hmacs
        self._metadata.publisher.subscribe(self._update_tokens)
        self._dispatcher = Dispatcher(self.as_served)

    # --- life

    def start(self) -> None:
        """Format what is new where nobody else is asked whose it is, and replay the metadata.

        FormatError, StorageError (StartRefused among them), CorruptMetadata.
        """
        config, rng = self.config, self.host.random("formatting")
        owners = load_meta_properties(self._disk, all_directories(config))
        is_new = needs_format(
            self._disk, owners, metadata_dir=metadata_directory(config), node_id=self.node_id
        )
        is_both = config.is_broker and config.is_controller
        if is_new and not is_both:
            raise StartRefused(
                f"there is no meta.properties in {', '.join(owners.unformatted)}: prepare them with kwire "
                f"format and the id of the cluster"
            )
        self.log_manager.lock()
        if is_new:
            now_ms = self.host.now_ms()
            for line in format_directories(config, self._disk, rng, now_ms, ignore_formatted=True):
                self._logger.info("%s", line)
        else:
            assign_directory_ids(self._disk, owners, lambda: new_uuid(rng), self._logger)
        self.log_manager.load_meta_properties()
        with name_metadata_directory_in_errors(config):
            self._metadata.start(self.bound_ports, self.host_name)

    def controlled_shutdown(self, on_done: Callable[[], None]) -> None:
        """Have others lead what this node does; `on_left` is called when it may end. KIP-631, KIP-595.

        A broker that is alone with itself as its controller has nobody to hand anything over to.
        """
        others = self.image.brokers.keys() - {self.node_id}
        hands_over = self.lifecycle.stage is LifecycleStage.UNFENCED and (
            others or not self.quorum.is_sole_voter
        )
        if hands_over and self.config.controlled_shutdown_enable:
            self._on_shutdown_allowed = lambda: self._metadata.resign(on_done)
            self.lifecycle.begin_controlled_shutdown()
        else:
            self._metadata.resign(on_done)

    def begin_shutdown(self) -> None:
        """Let everyone go who waits, so that connections can drain."""
        self.stopping = True
        if self.sessions is not None:
            self.sessions.send_delayed_failures()

    @abstractmethod
    def kill(self) -> None:
        """End the processes of its own that it has: this is to be as if it were killed."""

    def finish_shutdown(self) -> None:
        """Write what is staged, then flush, checkpoint and mark the directories as cleanly shut down."""
        self.end_turn()
        self._metadata.shutdown()
        self.log_manager.shutdown(self.host.now_ms(), broker_epoch=self.lifecycle.broker_epoch)

    # --- the turn

    @property
    @abstractmethod
    def as_served(self) -> CombinedRole:
        """Itself, as handlers of requests see it."""

    @abstractmethod
    def end_turn(self, send_responses: Callable[[], None] | None = None) -> None:
        """Write what this turn appended, and call `answer` before what comes of that."""

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        """Take one request (without its size prefix). WireError: the connection must be closed."""
        self._dispatcher.dispatch(channel, frame, self.host.now_ms())

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Whether a request is not to be handled before earlier ones of its connection are answered."""
        return self._dispatcher.must_wait(channel, frame)

    def channel_opened(self, channel: Channel) -> None:
        """There is a connection: where its listener has SASL, it has to say first who asks."""
        security = listener_security(self.config, channel.listener)
        if security is not None:
            if self.sessions is None:
                from kwire.broker.api.security.sasl_session import (
                    SaslSessions,
                )  # without which most nodes start

                self.sessions = SaslSessions(self.as_served)
            self.sessions.begin(channel, security)

    def channel_closed(self, channel: Channel) -> None:
        """A connection is gone: its long poll, if it has one, ends."""
        interrupt = channel.interrupt
        channel.close()
        if interrupt is not None:
            interrupt()

    # --- what clients are told

    @property
    def own_controller(self) -> ControllerPort:
        """The controller of this node: handlers of a controller's APIs alone ask for it."""
        assert self._metadata.runtime is not None
        return self._metadata.runtime

    @property
    def cluster_id(self) -> str:
        return self.log_manager.cluster_id

    @cached_property
    def users(self) -> ImageUsers:
        """Whose passwords and tokens are known."""
        # Imported here, with OpenSSL: nobody asks for them where no listener has SASL.
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
        return self._metadata.publisher.image

    def endpoints(self, node_ids: Iterable[int], listener: str) -> list[Endpoint]:
        """Where these brokers are reached through a listener, as they have said; else they are left out."""
        brokers = self.image.brokers
        return [
            Endpoint(node_id, endpoint.host, endpoint.port, broker.rack)
            for node_id in node_ids
            if (broker := brokers.get(node_id)) is not None
            and (endpoint := broker.endpoints.get(listener)) is not None
        ]

    def loggers(self) -> dict[str, logging.Logger]:
        """Those of the process: nodes in one share them."""
        return known_loggers()

    def features(self) -> Features:
        """Feature levels for ApiVersions."""
        image = self.image
        served = served_features()
        finalized = {name: level for name, level in image.features.items() if name in served}
        if self.quorum.kraft_version:
            finalized[KRAFT_VERSION] = self.quorum.kraft_version
        return Features(served, finalized, image.offset)

    # --- following the metadata

    def _apply_configs(self) -> None:
        """What was set on the running cluster and node holds from now on."""
        image = self.image
        self.config.update(
            image.config(RESOURCE_BROKER, ""), image.config(RESOURCE_BROKER, str(self.node_id))
        )
        for changed in self.config_changed:
            changed()
