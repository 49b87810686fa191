"""The way to the active controller, for requests of clients and for the broker's own commands alike."""

from __future__ import annotations

from typing import Any, Protocol

from kwire.broker.controller.commands import Command, OnDone


class ControllerPort(Protocol):
    """The active controller, wherever it is."""

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Submit a command; `on_done` gets the response, or an ApiError, once its records are committed.

        NOT_CONTROLLER: there is no active controller, or it lost the lead meanwhile. KAFKA_STORAGE_ERROR: its
        log cannot be written. `on_done` is never called before this returns.
        """
