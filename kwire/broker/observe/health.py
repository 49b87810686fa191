"""Whether a node lives, and whether clients may come to it: one sentence each where it is not so."""

from __future__ import annotations

import trio

from kwire.broker.observe.ports import RunningNode

TURN_TIMEOUT_SECONDS = 5.0
"""How long a loop may take to turn before it is said not to."""


async def why_not_alive(running: RunningNode, timeout_seconds: float = TURN_TIMEOUT_SECONDS) -> str:
    """Why the node should be started again; empty where its loop turns.

    The loop and whoever asks share a thread: where that is held up, no answer comes at all.
    """
    if running.failure.reason:
        return f"the broker has to stop: {running.failure.reason}"
    turned = trio.Event()
    running.loop.call_soon(turned.set)
    with trio.move_on_after(timeout_seconds):
        await turned.wait()
    return "" if turned.is_set() else f"the loop has not turned in {timeout_seconds:g} s"


def why_not_ready(running: RunningNode) -> str:
    """Why clients should not come to this node; empty where they may."""
    node = running.node
    if running.failure.reason:
        return f"the broker has to stop: {running.failure.reason}"
    if node.stopping or running.server.draining:
        return "the node is stopping"
    broker = running.broker
    if broker is None:
        return "" if node.quorum.leader_id >= 0 else "no active controller is known"
    if broker.lifecycle.not_ready_reason:
        return broker.lifecycle.not_ready_reason
    registered = broker.image.brokers.get(broker.node_id)
    if registered is None or registered.fenced:
        return "the broker is fenced: the active controller has not heard from it in time"
    return ""
