"""A node with only the controller role."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import RESOURCE_BROKER, MetadataImage
from kwire.broker.node.base import NodeBase
from kwire.broker.node.format import all_directories, metadata_directory, separate_directory
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, StorageError
from kwire.host.host import Host

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import NodeRole


class ControllerNode(NodeBase):
    """A node with only the controller role."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        disk: Disk,
        *,
        on_unfenced: Callable[[], None] = lambda: None,
        on_fatal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_unfenced` is called after the controller has started. For `on_fatal`, see `NodeBase`."""
        log_manager = LogManager(
            disk,
            all_directories(config),
            rng=host.random("directories"),
            logger=host.logger("kwire.storage"),
            metadata_dir=separate_directory(config),
            on_directory_failed=self._directory_failed,
        )
        super().__init__(config, host, disk, log_manager, on_fatal=on_fatal)
        self._on_started = on_unfenced

    def start(self) -> None:
        super().start()
        self._apply_configs()
        self.metadata.publisher.subscribe(self._metadata_changed)
        self._on_started()

    def begin_shutdown(self) -> None:
        super().begin_shutdown()
        self.metadata.complete_delayed_fetches()

    def kill(self) -> None:
        pass  # a controller has no child processes

    @property
    def as_node_role(self) -> NodeRole:
        return cast("NodeRole", self)  # a controller has no listener for broker APIs

    def end_turn(self, send_responses: Callable[[], None] | None = None) -> None:
        """Do nothing: a controller stages no appends."""

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if any(resource_type == RESOURCE_BROKER for resource_type, _ in delta.changed_configs):
            self._apply_configs()

    def _directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """Stop the node if the metadata log's directory has failed. A controller uses no other directory."""
        if directory.path == metadata_directory(self.config):
            reason = f"the log directory of the metadata log has failed: {error}"
            self.host.call_soon(lambda: self._on_fatal(reason))
