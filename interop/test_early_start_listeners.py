"""Listeners before the authorizer has loaded the ACLs (KIP-801), and the check of early.start.listeners."""

from __future__ import annotations

import subprocess

import pytest

from interop.authorizer.world import until
from interop.brokers import ApacheKafka, Broker, Kwire, free_port, responds_to_api_versions
from interop.raw_client import RawClient
from interop.wire import encode_request

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
UNKNOWN_SERVER_ERROR = -1
SILENCE_S = 2.0
KINDS = (ApacheKafka, Kwire)


@pytest.mark.parametrize("name", ["OTHER", "controller"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_an_error(name: str, kind: type[Broker], only: str) -> None:
    if only not in ("", kind.name):
        pytest.skip("runs the other broker")
    broker = kind({**AUTHORIZER, "early.start.listeners": f"PLAINTEXT,{name}"})
    try:
        with pytest.raises((RuntimeError, subprocess.CalledProcessError)) as raised:
            broker.start()
        error = raised.value
        text = error.stderr.decode() if isinstance(error, subprocess.CalledProcessError) else str(error)
        assert "early.start.listeners" in text
        assert name in text
    finally:
        broker.discard()


@pytest.mark.parametrize("early", [None, "CONTROLLER,PLAINTEXT"])
@pytest.mark.parametrize("kind", KINDS)
def test_requests_before_the_acls_are_loaded(early: str | None, kind: type[Broker], only: str) -> None:
    """Without a quorum, no ACLs can be loaded. Controller listeners respond, and broker listeners do not."""
    if only not in ("", kind.name):
        pytest.skip("runs the other broker")
    broker = kind(AUTHORIZER)
    broker.properties["controller.quorum.voters"] += f",2@127.0.0.1:{free_port()}"
    if early is not None:
        broker.properties["early.start.listeners"] = early
    try:
        broker.start(wait=False)
        until(lambda: responds_to_api_versions(broker.controller_port), "the controller listener is silent")
        with RawClient(broker.controller_bootstrap) as client:
            response = client.call("DescribeUserScramCredentials", 0, Users=[])
            assert response["ErrorCode"] == UNKNOWN_SERVER_ERROR
        assert not responds(broker.port)
    finally:
        broker.discard()


def responds(port: int) -> bool:
    """Return whether a listener responds within `SILENCE_S`. kwire refuses the connection before."""
    try:
        with RawClient(f"127.0.0.1:{port}") as client:
            client.socket.settimeout(SILENCE_S)
            client.send_frame(encode_request("ApiVersions", 0, {}))
            client.read_frame()
            return True
    except (ConnectionRefusedError, EOFError, TimeoutError):
        return False
