"""The interface to the active controller, for client requests and for the broker's own commands."""

from __future__ import annotations

from typing import Any, Protocol

from kwire.broker.controller.commands import Command, OnDone


class ControllerPort(Protocol):
    """The active controller, on this node or on another one."""

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Submit a command; `on_done` gets the response, or an ApiError, once its records are committed.

        NOT_CONTROLLER: there is no active controller, or it resigned before the commit. KAFKA_STORAGE_ERROR:
        its metadata log cannot be written. `on_done` is never called before this method returns.
        """
