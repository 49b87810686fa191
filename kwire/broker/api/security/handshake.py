"""Error responses to SaslHandshake v0–1 and SaslAuthenticate v0–2 out of order. KIP-43, KIP-152.

While a connection authenticates, `api.security.sasl_session` handles these requests. They reach the handlers
in this module on a listener without SASL, and after authentication if they do not start a re-authentication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from kwire.broker.api.request.context import RequestContext
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import NodeRole

TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


def sasl_handshake(node: NodeRole, context: RequestContext, request: SaslHandshakeRequest) -> NoReturn:
    raise ApiError(ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(node: NodeRole, context: RequestContext, request: SaslAuthenticateRequest) -> NoReturn:
    raise ApiError(ErrorCode.ILLEGAL_SASL_STATE, TOO_LATE)
