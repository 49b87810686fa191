"""When a broker is announced to whoever runs it."""

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
def test_a_broker_is_announced_once_its_cluster_counts_on_it(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    order = []

    class SlowNode(Node):
        """A node that hears later how its start ends, as it does where the controller is another one."""

        def __init__(
            self,
            *arguments: Any,
            on_unfenced: Callable[[], None],
            on_fatal: Callable[[str], None],
        ) -> None:
            def later() -> None:
                order.append(end)
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
            order.append("announced")
            assert broker.failure.reason == ("made up" if end == "failed" else "")

    trio.run(run)
    assert order == [end, "announced"]


def test_listeners_on_every_interface_are_told_by_the_name_of_the_machine(
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
            assert [told.host for told in node.endpoints([node.node_id], "PLAINTEXT")] == ["machine.example"]
            registered = node.image.brokers[node.node_id], node.image.controllers[node.node_id]
            assert [told.host for one in registered for told in one.endpoints.values()] == [
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
    ids=["known", "of another by now", "without a name", "unknown"],
)
def test_a_machine_is_called_as_java_calls_it(
    monkeypatch: pytest.MonkeyPatch,
    address_of_own_name: str | None,
    name_of_address: str | None,
    addresses_of_name: list[str],
    canonical: str,
) -> None:
    def known(found: str | None) -> str:
        if found is None:
            raise OSError("no such host")
        return found

    monkeypatch.setattr(socket, "gethostname", lambda: "machine")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: known(address_of_own_name))
    monkeypatch.setattr(socket, "getnameinfo", lambda address, flags: (known(name_of_address), "0"))
    monkeypatch.setattr(socket, "gethostbyname_ex", lambda name: (name, [], addresses_of_name))
    assert own_host_name() == canonical
