"""SaslHandshake and SaslAuthenticate where nobody is asked who he is."""

from __future__ import annotations

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.node_harness import NodeHarness


@pytest.mark.parametrize("role", ListenerRole)
def test_nobody_is_asked_for_it(role: ListenerRole) -> None:
    client = NodeHarness().connect(role=role)
    for version in range(2):
        answer = client.call(version, SaslHandshakeRequest(mechanism="PLAIN"))
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    for version in range(3):
        answer = client.call(version, SaslAuthenticateRequest(auth_bytes=b"x"))
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert answer.error_message == "SaslAuthenticate request received after successful authentication"
