"""A cluster as commands see it: what is not there is told at once, with what was perhaps meant."""

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


class CommandClient(ClusterClient):
    """See the module."""

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
        """As of any cluster; Failure for a topic that is not there, which nobody waits for."""
        try:
            return super().topics(names)
        except ApiError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        there = {topic.name for topic in self.metadata(None).topics}
        missing = next((name for name in names if name not in there), names[0])
        raise unknown_topic(missing, filter(None, there))

    def broker(self, node_id: int) -> int:
        """The id of a broker that must be there. Failure."""
        known = self.brokers()
        if node_id not in known:
            there = ", ".join(map(str, sorted(known)))
            raise CommandError(f"there is no broker {node_id}: the cluster has {there}")
        return node_id

    def wait_for_topic(self, topic: str, condition: Callable[[MetadataResponseTopic], bool]) -> None:
        """Wait until brokers know of a change, so that the next command does not meet what was before.

        The controller has made it, and brokers follow; it is no error if that takes them long. Lost.
        """
        self.wait_until(
            lambda: condition(self.metadata([topic]).topics[0]),
            min(PROPAGATION_SECONDS, self.timeout_seconds),
        )

    def wait_for_all_brokers(self, condition: Callable[[int], bool], output: Output) -> None:
        """The same of each broker, which is asked by its id; who does not know yet is told. Never fails."""
        if unaware := self.stale_brokers(condition, min(PROPAGATION_SECONDS, self.timeout_seconds)):
            nodes, verb = ("node", "does") if len(unaware) == 1 else ("nodes", "do")
            output.note(f"{nodes} {', '.join(map(str, unaware))} {verb} not know of it yet")
