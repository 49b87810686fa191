"""SASL authentication of this node with another node, as in Kafka's SaslClientAuthenticator.

The node sends SaslHandshake, and then as many SaslAuthenticate requests as the mechanism requires. The
authenticator does no I/O: its caller (`peer_link`) passes it each response and sends the request that the
authenticator returns. Error messages are those of Kafka's client. KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from kwire.broker.security.sasl import AuthenticationFailed, SaslClient
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.wire.schema import Message


class SaslClientAuthenticator:
    """One authentication exchange."""

    def __init__(self, client: SaslClient) -> None:
        self._client = client
        self.session_lifetime_ms = 0
        """The session lifetime that the other node returned; 0 means no limit."""

    def first_request(self) -> Message:
        """Return the SaslHandshake request that starts the exchange."""
        return SaslHandshakeRequest(mechanism=self._client.mechanism)

    def next_request(self, response: Message) -> Message | None:
        """Return the next request, or None if authentication has succeeded.

        Raises AuthenticationFailed if the response has an error, or if the other node fails to authenticate.
        """
        client = self._client
        challenge = b""
        if isinstance(response, SaslHandshakeResponse):
            if response.error_code:
                raise AuthenticationFailed(_handshake_error(response, client.mechanism))
        else:
            assert isinstance(response, SaslAuthenticateResponse)
            if response.error_code:
                raise AuthenticationFailed(response.error_message or f"error {response.error_code}")
            self.session_lifetime_ms = max(self.session_lifetime_ms, response.session_lifetime_ms)
            if client.is_complete:
                return None
            challenge = response.auth_bytes
        auth_bytes = client.evaluate(challenge)
        if auth_bytes is not None:
            return SaslAuthenticateRequest(auth_bytes=auth_bytes)
        if not client.is_complete:
            raise AuthenticationFailed(f"{client.mechanism} did not complete")
        return None


def _handshake_error(response: SaslHandshakeResponse, mechanism: str) -> str:
    enabled = f"enabled mechanisms are [{', '.join(response.mechanisms)}]"
    match response.error_code:
        case ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            return f"Client SASL mechanism '{mechanism}' not enabled in the server, {enabled}"
        case ErrorCode.ILLEGAL_SASL_STATE:
            return f"Unexpected handshake request with client mechanism {mechanism}, {enabled}"
        case code:
            return f"Unknown error code {code}, client mechanism is {mechanism}, {enabled}"
