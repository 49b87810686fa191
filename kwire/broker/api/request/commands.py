"""Requests that the controller on this node executes as a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kwire.broker.api.request.context import DELAYED, Delayed
from kwire.broker.controller.commands import Command
from kwire.wire.errors import ApiError
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole


def submit(
    node: ControllerRole,
    context: ControllerRequestContext,
    command: Command,
    respond: Callable[[Any], Message],
) -> Delayed:
    """Submit a command. `respond` returns the response, given the result of the command.

    If the command fails, the response has its error for the whole request.
    """

    def done(reply: Any) -> None:
        if isinstance(reply, ApiError):
            context.refuse(reply)
        else:
            context.complete(respond(reply))

    node.own_controller.submit(command, done)
    return DELAYED
