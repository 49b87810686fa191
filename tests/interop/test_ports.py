"""The ports of interop's brokers, which are fewer than the brokers of a run."""

from __future__ import annotations

import socket
from collections import deque

import pytest

from interop import brokers


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the pool of ports that `free_port` hands out with three free ports, and return them."""
    held = [socket.socket() for _ in range(3)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    monkeypatch.setattr(brokers, "_ports", deque(found))
    return found


def test_port_is_reused_after_all_others(ports: list[int]) -> None:
    assert [brokers.free_port() for _ in range(7)] == [*ports, *ports, ports[0]]


def test_port_in_use_is_skipped(ports: list[int]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[1]))
        taken.listen()
        assert [brokers.free_port() for _ in range(4)] == [ports[0], ports[2], ports[0], ports[2]]


def test_no_free_port_is_an_error(ports: list[int]) -> None:
    with socket.socket() as one, socket.socket() as two, socket.socket() as three:
        for port, each in zip(ports, (one, two, three), strict=True):
            each.bind(("127.0.0.1", port))
            each.listen()
        with pytest.raises(RuntimeError, match="no free port"):
            brokers.free_port()
