"""When a broker is announced to whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from kwire.broker.config import load
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
            self, *arguments: Any, on_unfenced: Callable[[], None], on_fatal: Callable[[str], None]
        ) -> None:
            def later() -> None:
                order.append(end)
                if end == "unfenced":
                    on_unfenced()
                else:
                    on_fatal("made up")

            super().__init__(*arguments, on_unfenced=lambda: self.host.call_soon(later), on_fatal=on_fatal)

    monkeypatch.setattr("kwire.broker.net.serve.Node", SlowNode)

    async def run() -> None:
        async with serve(load(None, {}, SETTINGS), disk=MemoryDisk()) as broker:
            order.append("announced")
            assert broker.failure.reason == ("made up" if end == "failed" else "")

    trio.run(run)
    assert order == [end, "announced"]
