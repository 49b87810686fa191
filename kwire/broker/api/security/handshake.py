"""Error responses to SaslHandshake v0–1 and SaslAuthenticate v0–2 out of order. KIP-43, KIP-152.

While a connection authenticates, `api.security.sasl_session` handles these requests. They reach the handlers
in this module on a listener without SASL, and after authentication if they do not start a re-authentication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.context import RequestContext
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import NodeRole

TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


def sasl_handshake(
    node: NodeRole, context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(
    node: NodeRole, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=TOO_LATE)
