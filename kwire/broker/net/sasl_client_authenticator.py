"""One node shows another who it is: SaslHandshake, then SaslAuthenticate as often as the mechanism speaks.

A machine that is fed with answers and says what to ask next; the link (`peer_link`) sends it. Its words are
those of Kafka's client. KIP-43, KIP-152; KIP-368 (how long it holds).
"""

from __future__ import annotations

from kwire.broker.security.sasl import AuthenticationFailed, SaslClient
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.wire.schema import Message


class SaslClientAuthenticator:
    """One exchange."""

    def __init__(self, client: SaslClient) -> None:
        self._client = client
        self.session_lifetime_ms = 0
        """How long it holds, as the other node has said; 0 is for good."""

    def first_request(self) -> Message:
        """What is asked first."""
        return SaslHandshakeRequest(mechanism=self._client.mechanism)

    def next_request(self, answer: Message) -> Message | None:
        """What is asked next; None when the exchange has succeeded. AuthenticationFailed."""
        client = self._client
        challenge = b""
        if isinstance(answer, SaslHandshakeResponse):
            if answer.error_code:
                raise AuthenticationFailed(_handshake_error(answer, client.mechanism))
        else:
            assert isinstance(answer, SaslAuthenticateResponse)
            if answer.error_code:
                raise AuthenticationFailed(answer.error_message or f"error {answer.error_code}")
            self.session_lifetime_ms = max(self.session_lifetime_ms, answer.session_lifetime_ms)
            if client.is_complete:
                return None
            challenge = answer.auth_bytes
        response = client.evaluate(challenge)
        if response is not None:
            return SaslAuthenticateRequest(auth_bytes=response)
        if not client.is_complete:
            raise AuthenticationFailed(f"{client.mechanism} has come to no end")
        return None


def _handshake_error(answer: SaslHandshakeResponse, mechanism: str) -> str:
    enabled = f"enabled mechanisms are [{', '.join(answer.mechanisms)}]"
    match answer.error_code:
        case ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            return f"Client SASL mechanism '{mechanism}' not enabled in the server, {enabled}"
        case ErrorCode.ILLEGAL_SASL_STATE:
            return f"Unexpected handshake request with client mechanism {mechanism}, {enabled}"
        case code:
            return f"Unknown error code {code}, client mechanism is {mechanism}, {enabled}"
