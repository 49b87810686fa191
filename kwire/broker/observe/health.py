"""Liveness and readiness checks of a node. A check that fails returns the reason; otherwise it returns ""."""

from __future__ import annotations

import trio

from kwire.broker.observe.ports import RunningNode

TURN_TIMEOUT_SECONDS = 5.0
"""The time after which the event loop counts as stuck if it has not completed a turn."""


async def why_not_alive(running: RunningNode, timeout_seconds: float = TURN_TIMEOUT_SECONDS) -> str:
    """Return why the node should be restarted; "" if the node has not failed and its event loop runs.

    The event loop and this check share a thread. If that thread is blocked, the check never returns.
    """
    if running.failure.reason:
        return f"the broker is stopping after a failure: {running.failure.reason}"
    turned = trio.Event()
    running.loop.call_soon(turned.set)
    with trio.move_on_after(timeout_seconds):
        await turned.wait()
    return "" if turned.is_set() else f"the event loop has not responded for {timeout_seconds:g} s"


def why_not_ready(running: RunningNode) -> str:
    """Return why clients should not use this node; "" if they can."""
    node = running.node
    if running.failure.reason:
        return f"the broker is stopping after a failure: {running.failure.reason}"
    if node.stopping or running.server.draining:
        return "the node is shutting down"
    broker = running.broker
    if broker is None:
        return "" if node.quorum.leader_id >= 0 else "no active controller is known"
    if broker.lifecycle.not_ready_reason:
        return broker.lifecycle.not_ready_reason
    registered = broker.image.brokers.get(broker.node_id)
    if registered is None or registered.fenced:
        return "the broker is fenced: its session with the active controller has timed out"
    return ""
