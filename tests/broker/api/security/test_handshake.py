"""SaslHandshake and SaslAuthenticate on a listener without SASL."""

from __future__ import annotations

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.node_harness import NodeHarness


@pytest.mark.parametrize("role", ListenerRole)
def test_sasl_requests_on_a_plaintext_listener_are_illegal(role: ListenerRole) -> None:
    client = NodeHarness().connect(role=role)
    for version in range(2):
        response = client.call(version, SaslHandshakeRequest(mechanism="PLAIN"))
        assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    for version in range(3):
        response = client.call(version, SaslAuthenticateRequest(auth_bytes=b"x"))
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert response.error_message == "SaslAuthenticate request received after successful authentication"
