"""A cluster client for commands, which reports missing topics at once, with a suggestion."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from kwire.cli.shared.client_settings import ClientSettings
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.errors import unknown_topic
from kwire.cli.shared.output import Output
from kwire.client.cluster_client import ClusterClient
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.metadata import MetadataResponseTopic

PROPAGATION_SECONDS: Final = 5
"""Maximum time that commands wait until brokers have applied a change."""


class CommandClient(ClusterClient):
    """A cluster client whose errors are sentences for people."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(
            settings.servers,
            client_id=settings.client_id,
            timeout_seconds=settings.timeout_seconds,
            security=settings.security,
            now=now,
            sleep=sleep,
        )

    def topics(self, names: Sequence[str]) -> list[MetadataResponseTopic]:
        """Return the metadata of topics. Raises CommandError at once if a topic does not exist."""
        try:
            return super().topics(names)
        except ApiError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        there = {topic.name for topic in self.metadata(None).topics}
        missing = next((name for name in names if name not in there), names[0])
        raise unknown_topic(missing, filter(None, there))

    def broker(self, node_id: int) -> int:
        """Return `node_id` if the cluster has that broker; otherwise raise CommandError."""
        known = self.brokers()
        if node_id not in known:
            there = ", ".join(map(str, sorted(known)))
            raise CommandError(f"there is no broker {node_id}: the cluster has {there}")
        return node_id

    def wait_for_topic(self, topic: str, condition: Callable[[MetadataResponseTopic], bool]) -> None:
        """Wait until a topic's metadata fulfills `condition`, so that the next command sees a change.

        The controller has already made the change, so a timeout is not an error. Raises Disconnected.
        """
        self.wait_until(
            lambda: condition(self.metadata([topic]).topics[0]),
            min(PROPAGATION_SECONDS, self.timeout_seconds),
        )

    def wait_for_all_brokers(self, condition: Callable[[int], bool], output: Output) -> None:
        """Wait until each broker has applied a change. Print a note if some have not.

        `condition` queries the broker with the given id for the change. Errors of the query are not raised.
        """
        if unaware := self.stale_brokers(condition, min(PROPAGATION_SECONDS, self.timeout_seconds)):
            nodes, verb = ("node", "has") if len(unaware) == 1 else ("nodes", "have")
            output.note(f"{nodes} {', '.join(map(str, unaware))} {verb} not applied the change yet")
