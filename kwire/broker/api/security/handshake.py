"""SaslHandshake v0–1 and SaslAuthenticate v0–2 where nobody is to be authenticated. KIP-43, KIP-152.

Those of a connection that is being authenticated never come this far (`api.security.session`): these come on
a listener without SASL, or after the authentication, where none is to follow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.context import RequestContext
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import CombinedRole

TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


def sasl_handshake(
    node: CombinedRole, context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(
    node: CombinedRole, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=TOO_LATE)
