"""Create- v1–3, Renew- v1–2, Expire- v1–2 and DescribeDelegationToken v1–3. KIP-48, KIP-373.

Checks, in this order: whether the client may request tokens; for a new token, whether its renewers are users;
then the controller's checks (`broker.controller.delegation_tokens`). A client must not request tokens on a
listener without authentication, or if the client has authenticated with a token. For a forwarded request, the
controller does not repeat the listener check, because the Envelope may have arrived on a listener with
another security protocol.

A client may describe its own tokens, those that it may renew, and those that its rights include.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import Delayed
from kwire.broker.controller.commands import CreateToken, ExpireToken, Fault, RenewToken
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.security.delegation_tokens import TokenHmacs, is_owner_requester_or_renewer, parse_principal
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kwire.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from kwire.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from kwire.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kwire.wire.records.metadata import DelegationTokenRecord

if TYPE_CHECKING:
    from kwire.broker.api.request.forwarding import Forward
    from kwire.broker.api.request.ports import (
        BrokerRole,
        ClusterView,
        ControllerRequestContext,
        ControllerRole,
    )

ExpiryRequest = RenewDelegationTokenRequest | ExpireDelegationTokenRequest
ExpiryResponse = RenewDelegationTokenResponse | ExpireDelegationTokenResponse

NO_TIMESTAMP: Final = -1
FIRST_WITH_REQUESTER: Final = 3
NOT_ALLOWED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def _may_request_tokens(node: ClusterView, context: ControllerRequestContext) -> bool:
    """Return whether the client has authenticated with something other than a delegation token."""
    if context.principal.token_authenticated:
        return False
    protocol = node.config.protocol(context.listener)
    return protocol != "PLAINTEXT" and not (protocol == "SSL" and context.principal.is_same(ANONYMOUS))


# --- CreateDelegationToken


def check_create_delegation_token(
    node: BrokerRole,
    context: ControllerRequestContext,
    request: CreateDelegationTokenRequest,
    forward: Forward,
) -> CreateDelegationTokenResponse | Delayed:
    """Forward the request if the client may request tokens and all renewers are users."""
    owner = _owner(context, request)
    if not _may_request_tokens(node, context):
        return _creation_error(context, owner, NOT_ALLOWED)
    if not _may_create_for(node, context, owner):
        return _creation_error(context, owner, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if any(renewer.principal_type != USER for renewer in request.renewers):
        return _creation_error(context, owner, ErrorCode.INVALID_PRINCIPAL_TYPE)
    return forward(context, request)


def create_delegation_token_directly(
    node: ControllerRole, context: ControllerRequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | Delayed:
    """Handle a CreateDelegationToken request that a client has sent to a controller listener."""
    if not _may_request_tokens(node, context):
        return _creation_error(context, _owner(context, request), NOT_ALLOWED)
    return create_delegation_token(node, context, request)


def create_delegation_token(
    node: ControllerRole, context: ControllerRequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | Delayed:
    """Create a token on the controller, for the requester or, from v3 on, for another owner."""
    owner, requester = _owner(context, request), context.principal
    if requester.token_authenticated:
        return _creation_error(context, owner, NOT_ALLOWED)
    if not _may_create_for(node, context, owner):
        return _creation_error(context, owner, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)

    def respond(reply: DelegationTokenRecord | Fault) -> CreateDelegationTokenResponse:
        response = _response(context, owner)
        if isinstance(reply, Fault):
            response.error_code = reply.code
        else:
            response.issue_timestamp_ms = reply.issue_timestamp
            response.expiry_timestamp_ms = reply.expiration_timestamp
            response.max_timestamp_ms = reply.max_timestamp
            response.token_id = reply.token_id
            response.hmac = node.token_hmacs.hmac_of(reply.token_id)
        return response

    renewers = [Principal(renewer.principal_type, renewer.principal_name) for renewer in request.renewers]
    command = CreateToken(requester, owner, renewers, request.max_lifetime_ms, node.host.now_ms())
    return submit(node, context, command, respond)


def _may_create_for(
    node: BrokerRole | ControllerRole, context: ControllerRequestContext, owner: Principal
) -> bool:
    return owner.is_same(context.principal) or node.gate.allows(
        context, Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
    )


def _owner(context: ControllerRequestContext, request: CreateDelegationTokenRequest) -> Principal:
    if not request.owner_principal_name:
        return context.principal
    if request.owner_principal_type is None:
        raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    return Principal(request.owner_principal_type, request.owner_principal_name)


def _response(context: ControllerRequestContext, owner: Principal) -> CreateDelegationTokenResponse:
    response = CreateDelegationTokenResponse(principal_type=owner.type, principal_name=owner.name)
    if context.api_version >= FIRST_WITH_REQUESTER:
        response.token_requester_principal_type = context.principal.type
        response.token_requester_principal_name = context.principal.name
    return response


def _creation_error(
    context: ControllerRequestContext, owner: Principal, code: ErrorCode
) -> CreateDelegationTokenResponse:
    response = _response(context, owner)
    response.error_code = code
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = NO_TIMESTAMP
    return response


# --- RenewDelegationToken, ExpireDelegationToken


def check_change_expiry(
    node: BrokerRole, context: ControllerRequestContext, request: ExpiryRequest, forward: Forward
) -> ExpiryResponse | Delayed:
    """Forward a request to renew or expire a token, if the client may request tokens."""
    return forward(context, request) if _may_request_tokens(node, context) else _not_allowed(request)


def change_expiry_directly(
    node: ControllerRole, context: ControllerRequestContext, request: ExpiryRequest
) -> ExpiryResponse | Delayed:
    """Handle a request to renew or expire a token that a client has sent to a controller listener."""
    return (
        change_expiry(node, context, request) if _may_request_tokens(node, context) else _not_allowed(request)
    )


def change_expiry(
    node: ControllerRole, context: ControllerRequestContext, request: ExpiryRequest
) -> ExpiryResponse | Delayed:
    """Renew or expire a token on the controller. Only the token's owner and renewers may do so."""
    principal, hmac, now_ms = context.principal, bytes(request.hmac), node.host.now_ms()
    if principal.token_authenticated:
        return _not_allowed(request)

    def respond(reply: int | Fault) -> ExpiryResponse:
        if isinstance(reply, Fault):
            return _expiry_response(request, reply.code, 0)
        return _expiry_response(request, ErrorCode.NONE, reply)

    command = (
        RenewToken(principal, hmac, request.renew_period_ms, now_ms)
        if isinstance(request, RenewDelegationTokenRequest)
        else ExpireToken(principal, hmac, request.expiry_time_period_ms, now_ms)
    )
    return submit(node, context, command, respond)


def _not_allowed(request: ExpiryRequest) -> ExpiryResponse:
    return _expiry_response(request, NOT_ALLOWED, NO_TIMESTAMP)


def _expiry_response(request: ExpiryRequest, code: ErrorCode, expires_ms: int) -> ExpiryResponse:
    if isinstance(request, RenewDelegationTokenRequest):
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires_ms)
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires_ms)


# --- DescribeDelegationToken


def describe_delegation_token(
    node: BrokerRole, context: ControllerRequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Return the tokens of which a listed principal is owner, requester or renewer. Null means all tokens.

    Raises ApiError DELEGATION_TOKEN_REQUEST_NOT_ALLOWED or DELEGATION_TOKEN_AUTH_DISABLED.
    """
    if not _may_request_tokens(node, context):
        raise ApiError(NOT_ALLOWED)
    hmacs = node.token_hmacs
    if not hmacs.secret:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    tokens = list(node.image.delegation_tokens.values())
    if request.owners is not None:
        owners = [Principal(owner.principal_type, owner.principal_name) for owner in request.owners]
        tokens = [
            token for token in tokens if any(is_owner_requester_or_renewer(token, owner) for owner in owners)
        ]
    return DescribeDelegationTokenResponse(
        tokens=[
            _describe(token, hmacs, context.api_version)
            for token in tokens
            if is_owner_requester_or_renewer(token, context.principal)
            or node.gate.allows(context, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
            or node.gate.allows(context, Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
        ]
    )


def _describe(token: DelegationTokenRecord, hmacs: TokenHmacs, version: int) -> DescribedDelegationToken:
    owner = parse_principal(token.owner)
    described = DescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=hmacs.hmac_of(token.token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=renewer.type, principal_name=renewer.name)
            for renewer in map(parse_principal, token.renewers)
        ],
    )
    if version >= FIRST_WITH_REQUESTER:
        requester = parse_principal(token.requester)
        described.token_requester_principal_type = requester.type
        described.token_requester_principal_name = requester.name
    return described
