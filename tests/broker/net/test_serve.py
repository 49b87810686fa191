"""The announcement of a started broker, and the host name that it advertises."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio

from kwire.broker.config import load
from kwire.broker.net.listeners import own_host_name
from kwire.broker.net.serve import serve
from kwire.broker.node.node import Node
from kwire.testing.disk import MemoryDisk

SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data"}


@pytest.mark.parametrize("end", ["unfenced", "failed"])
def test_broker_is_announced_once_unfenced_or_failed(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    events = []

    class SlowNode(Node):
        """A node whose start completes later, as with a remote controller."""

        def __init__(
            self,
            *arguments: Any,
            on_unfenced: Callable[[], None],
            on_fatal: Callable[[str], None],
        ) -> None:
            def later() -> None:
                events.append(end)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", self.bound_ports["PLAINTEXT"]))
                if end == "unfenced":
                    on_unfenced()
                else:
                    on_fatal("made up")

            super().__init__(
                *arguments,
                on_unfenced=lambda: self.host.call_soon(later),
                on_fatal=on_fatal,
            )

    monkeypatch.setattr("kwire.broker.net.running_node.new_node", SlowNode)

    async def run() -> None:
        async with serve(load(None, {}, SETTINGS), disk=MemoryDisk()) as broker:
            events.append("announced")
            assert broker.failure.reason == ("made up" if end == "failed" else "")

    trio.run(run)
    assert events == [end, "announced"]


def test_wildcard_listeners_are_advertised_with_the_host_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kwire.broker.net.running_node.own_host_name", lambda: "machine.example")
    settings = {
        "listeners": "PLAINTEXT://:0,CONTROLLER://0.0.0.0:0",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "/data",
    }

    async def run() -> None:
        async with serve(load(None, {}, settings), disk=MemoryDisk()) as broker:
            node = broker.node
            assert [endpoint.host for endpoint in node.endpoints([node.node_id], "PLAINTEXT")] == [
                "machine.example"
            ]
            registered = node.image.brokers[node.node_id], node.image.controllers[node.node_id]
            assert [endpoint.host for one in registered for endpoint in one.endpoints.values()] == [
                "machine.example"
            ] * 2

    trio.run(run)


@pytest.mark.parametrize(
    ("address_of_own_name", "name_of_address", "addresses_of_name", "canonical"),
    [
        ("10.0.0.1", "machine.example", ["10.0.0.2", "10.0.0.1"], "machine.example"),
        ("10.0.0.1", "stale.example", ["10.0.0.2"], "10.0.0.1"),
        ("10.0.0.1", None, [], "10.0.0.1"),
        (None, None, [], "machine"),
    ],
    ids=["confirmed", "of another address", "without a name", "unknown"],
)
def test_canonical_host_name_is_javas(
    monkeypatch: pytest.MonkeyPatch,
    address_of_own_name: str | None,
    name_of_address: str | None,
    addresses_of_name: list[str],
    canonical: str,
) -> None:
    def lookup(found: str | None) -> str:
        if found is None:
            raise OSError("no such host")
        return found

    monkeypatch.setattr(socket, "gethostname", lambda: "machine")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: lookup(address_of_own_name))
    monkeypatch.setattr(socket, "getnameinfo", lambda address, flags: (lookup(name_of_address), "0"))
    monkeypatch.setattr(socket, "gethostbyname_ex", lambda name: (name, [], addresses_of_name))
    assert own_host_name() == canonical
