"""The cluster client of a page, which remembers its last request for the message of a denied one."""

from __future__ import annotations

from typing import TypeVar

from kwire.cli.shared.command_client import CommandClient
from kwire.wire.schema import Message

A = TypeVar("A", bound=Message)


class ConsoleClient(CommandClient):
    """A cluster client that remembers its last request."""

    last_request: Message | None = None

    def send(self, request: Message, response_type: type[A], *, at_most_once: bool = False) -> A:
        self.last_request = request
        return super().send(request, response_type, at_most_once=at_most_once)

    def send_to_node(
        self, node_id: int, request: Message, response_type: type[A], seconds: float | None = None
    ) -> A:
        address = self._address(node_id)  # may request metadata
        self.last_request = request
        return self._use_connection(address, lambda one: one.send(request, response_type, seconds))
