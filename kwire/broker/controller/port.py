"""The interface to the active controller, for client requests and for the broker's own commands."""

from __future__ import annotations

from typing import Any, Protocol

from kwire.broker.controller.commands import Command, OnDone


class ControllerPort(Protocol):
    """The active controller, on this node or on another node."""

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Submit a command; `on_done` gets its response, or an ApiError.

        The response arrives once the command's records are committed. NOT_CONTROLLER: there is no active
        controller, or the active controller resigned before the commit. KAFKA_STORAGE_ERROR: the metadata log
        cannot be written. `on_done` is never called before this method returns.
        """
