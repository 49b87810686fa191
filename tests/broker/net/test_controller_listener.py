"""The controller listener beside the broker listeners, over real sockets (KIP-919)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trio

from kwire.broker.api.request.supported_apis import ListenerRole, apis_for
from kwire.broker.config import load
from kwire.broker.net.listeners import BindError, bind
from kwire.broker.net.serve import serve, wait_any
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kwire.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.produce import ProduceRequest
from kwire.wire.registry import decode_response, encode_request
from tests.broker.net.conftest import MakeHarness, ServerHarness
from tests.broker.net.test_listeners import (
    HOST,
    connect,
    endpoints,
    extra_listener,
    set_listeners,
    start_broker,
)

BOTH = {
    "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTRA:PLAINTEXT",
}


def listen_as_controller(harness: ServerHarness) -> int:
    listener = bind("CONTROLLER", HOST, 0, harness.server.settings, ListenerRole.CONTROLLER)
    harness.server.listen(listener)
    return listener.port


async def test_connection_quotas_are_separate_per_role(make_harness: MakeHarness) -> None:
    harness = await make_harness(max_connections=1)
    port = listen_as_controller(harness)
    first, other = await harness.connect(), await harness.connect(port)
    assert await first.request(b"efirst") == b"first"
    assert await other.request(b"eother") == b"other"
    assert {role: limits.total for role, limits in harness.server.quotas.items()} == dict.fromkeys(
        ListenerRole, 1
    )
    waiting = await harness.connect(port)
    await waiting.send(b"elater")
    await trio.aclose_forcefully(other.stream)
    assert await waiting.receive() == b"later"
    assert {connection.channel.role for connection in harness.server.connections.values()} == set(
        ListenerRole
    )


async def test_change_of_broker_listeners_keeps_the_controller_listener(harness: ServerHarness) -> None:
    port = listen_as_controller(harness)
    harness.server.change_listeners(endpoints(harness, extra_listener()))
    await wait_any(harness.loop.workers_done())
    client = await harness.connect(port)
    harness.server.change_listeners(endpoints(harness))
    assert await client.request(b"estill there") == b"still there"
    assert [listener.name for listener in harness.server.listeners] == ["PLAINTEXT", "CONTROLLER"]


async def test_controller_listener_serves_controller_apis(tmp_path: Path) -> None:
    async with start_broker(tmp_path, **BOTH) as broker:
        ports = {listener.role: listener.port for listener in broker.server.listeners}
        assert broker.bootstrap == f"{HOST}:{ports[ListenerRole.BROKER]}"
        for role, port in ports.items():
            client = await connect(port)
            asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
            await client.send_raw(encode_request(asked, 4, 1, "test"))
            _, answer = decode_response(ApiVersionsResponse, 4, await client.receive())
            offered = {key for key, served in apis_for(role).items() if not served.needs_client_metrics}
            assert {one.api_key for one in answer.api_keys} == offered
            wanted = DescribeClusterRequest(endpoint_type=2 if role is ListenerRole.CONTROLLER else 1)
            await client.send_raw(encode_request(wanted, 1, 2, "test"))
            _, cluster = decode_response(DescribeClusterResponse, 1, await client.receive())
            # The bound port is advertised in place of port 0.
            assert [one.port for one in cluster.brokers] == [port]
            assert cluster.controller_id == 1
            await client.send_raw(encode_request(MetadataRequest(topics=[]), 12, 3, "test"))
            assert await client.is_closed() is (role is ListenerRole.CONTROLLER)
            await trio.aclose_forcefully(client.stream)
        client = await connect(ports[ListenerRole.CONTROLLER])
        now = f"PLAINTEXT://{HOST}:{ports[ListenerRole.BROKER]},CONTROLLER://{HOST}:{ports[ListenerRole.CONTROLLER]}"
        assert await set_listeners(client, f"{now},EXTRA://{HOST}:0") == 0
        await trio.aclose_forcefully(client.stream)
        await wait_any(broker.loop.workers_done())
        assert [one.name for one in broker.server.listeners] == ["CONTROLLER", "PLAINTEXT", "EXTRA"]
    with socket.socket() as again, pytest.raises(ConnectionRefusedError):
        again.connect((HOST, ports[ListenerRole.CONTROLLER]))


async def test_request_without_a_response_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_broker(tmp_path, **BOTH) as broker:
        for listener in broker.server.listeners:
            client = await connect(listener.port)
            request = DeleteAclsRequest(filters=[DeleteAclsFilter(operation=0)])
            await client.send_raw(encode_request(request, 3, 1, "test"))
            with trio.fail_after(10):
                assert await client.is_closed()
            await trio.aclose_forcefully(client.stream)
        monkeypatch.setattr("kwire.broker.api.records.produce.handle", lambda *_: 1 // 0)
        client = await connect(
            next(one.port for one in broker.server.listeners if one.role is ListenerRole.BROKER)
        )
        await client.send_raw(encode_request(ProduceRequest(acks=0), 9, 1, "test"))
        with trio.fail_after(10):
            assert await client.is_closed()
        await trio.aclose_forcefully(client.stream)


async def test_start_with_a_port_in_use_writes_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        listeners = f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:{taken.getsockname()[1]}"
        config = load(None, {}, BOTH | {"listeners": listeners, "log.dirs": str(tmp_path / "data")})
        with pytest.raises(BindError, match=r"listener CONTROLLER\): the port is in use"):
            async with serve(config):
                pass
    assert not list(tmp_path.iterdir())
