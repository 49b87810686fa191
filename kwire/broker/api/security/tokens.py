"""Create- v1–3, Renew- v1–2, Expire- v1–2 and DescribeDelegationToken v1–3. KIP-48, KIP-373.

Order of checks: whether who asks may ask for tokens at all, whether renewers are users (of a new one), then
the controller's own (`broker.controller.delegation_tokens`). Nobody may who has come by a listener that asks
nobody who he is, or by a token. What a broker has let through the controller does not ask about again: it may
have come to it by a listener of another kind.

The tokens that one may see are, without an authorizer, all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.context import PARKED, Parked
from kwire.broker.controller.commands import CreateToken, ExpireToken, Fault, RenewToken
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.tokens import TokenHmacs, concerns, principal_of
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
    from kwire.broker.api.request.ports import Asked, BrokerRole, ClusterView, ControllerRole

EndRequest = RenewDelegationTokenRequest | ExpireDelegationTokenRequest
EndResponse = RenewDelegationTokenResponse | ExpireDelegationTokenResponse

NO_TIME: Final = -1
REQUESTERS_SINCE: Final = 3
NOT_ALLOWED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def _may_ask(node: ClusterView, context: Asked) -> bool:
    """Whether somebody is known well enough to be asked for a token, and not by a token himself."""
    if context.principal.token_authenticated:
        return False
    protocol = node.config.protocol(context.listener)
    return protocol != "PLAINTEXT" and not (protocol == "SSL" and context.principal.is_same(ANONYMOUS))


# --- a new one


def check_create(
    node: BrokerRole, context: Asked, request: CreateDelegationTokenRequest, forward: Forward
) -> CreateDelegationTokenResponse | Parked:
    """What a broker looks at before the controller is asked."""
    owner = _owner(context, request)
    if not _may_ask(node, context):
        return _not_created(context, owner, NOT_ALLOWED)
    if any(renewer.principal_type != USER for renewer in request.renewers):
        return _not_created(context, owner, ErrorCode.INVALID_PRINCIPAL_TYPE)
    return forward(context, request)


def create_directly(
    node: ControllerRole, context: Asked, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | Parked:
    """A controller is asked by a client of its own."""
    if not _may_ask(node, context):
        return _not_created(context, _owner(context, request), NOT_ALLOWED)
    return create_delegation_token(node, context, request)


def create_delegation_token(
    node: ControllerRole, context: Asked, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | Parked:
    """A token of one's own, or (v3) of somebody else's."""
    owner, requester = _owner(context, request), context.principal
    if requester.token_authenticated:
        return _not_created(context, owner, NOT_ALLOWED)

    def done(reply: DelegationTokenRecord | Fault | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.refuse(reply)
            return
        response = _response(context, owner)
        if isinstance(reply, Fault):
            response.error_code = reply.code
        else:
            response.issue_timestamp_ms = reply.issue_timestamp
            response.expiry_timestamp_ms = reply.expiration_timestamp
            response.max_timestamp_ms = reply.max_timestamp
            response.token_id = reply.token_id
            response.hmac = node.token_hmacs.of(reply.token_id)
        context.complete(response)

    renewers = [Principal(renewer.principal_type, renewer.principal_name) for renewer in request.renewers]
    node.own_controller.submit(
        CreateToken(requester, owner, renewers, request.max_lifetime_ms, node.host.now_ms()), done
    )
    return PARKED


def _owner(context: Asked, request: CreateDelegationTokenRequest) -> Principal:
    if not request.owner_principal_name:
        return context.principal
    if request.owner_principal_type is None:
        raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    return Principal(request.owner_principal_type, request.owner_principal_name)


def _response(context: Asked, owner: Principal) -> CreateDelegationTokenResponse:
    response = CreateDelegationTokenResponse(principal_type=owner.type, principal_name=owner.name)
    if context.api_version >= REQUESTERS_SINCE:
        response.token_requester_principal_type = context.principal.type
        response.token_requester_principal_name = context.principal.name
    return response


def _not_created(context: Asked, owner: Principal, code: ErrorCode) -> CreateDelegationTokenResponse:
    response = _response(context, owner)
    response.error_code = code
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = NO_TIME
    return response


# --- how long it is good


def check_end(
    node: BrokerRole, context: Asked, request: EndRequest, forward: Forward
) -> EndResponse | Parked:
    """What a broker looks at before the controller is asked."""
    return forward(context, request) if _may_ask(node, context) else _not_moved(request)


def move_end_directly(node: ControllerRole, context: Asked, request: EndRequest) -> EndResponse | Parked:
    """A controller is asked by a client of its own."""
    return move_end(node, context, request) if _may_ask(node, context) else _not_moved(request)


def move_end(node: ControllerRole, context: Asked, request: EndRequest) -> EndResponse | Parked:
    """Its owner and its renewers may have a token live longer, or have it end."""
    principal, hmac, now_ms = context.principal, bytes(request.hmac), node.host.now_ms()
    if principal.token_authenticated:
        return _not_moved(request)

    def done(reply: int | Fault | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.refuse(reply)
        elif isinstance(reply, Fault):
            context.complete(_ends(request, reply.code, 0))
        else:
            context.complete(_ends(request, ErrorCode.NONE, reply))

    command = (
        RenewToken(principal, hmac, request.renew_period_ms, now_ms)
        if isinstance(request, RenewDelegationTokenRequest)
        else ExpireToken(principal, hmac, request.expiry_time_period_ms, now_ms)
    )
    node.own_controller.submit(command, done)
    return PARKED


def _not_moved(request: EndRequest) -> EndResponse:
    return _ends(request, NOT_ALLOWED, NO_TIME)


def _ends(request: EndRequest, code: ErrorCode, ends_ms: int) -> EndResponse:
    if isinstance(request, RenewDelegationTokenRequest):
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=ends_ms)
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=ends_ms)


# --- which there are


def describe_delegation_token(
    node: BrokerRole, context: Asked, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """The tokens that one of these people owns, has asked for or may renew; of a null list, all."""
    if not _may_ask(node, context):
        raise ApiError(NOT_ALLOWED)
    hmacs = node.token_hmacs
    if not hmacs.secret:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    tokens = list(node.image.delegation_tokens.values())
    if request.owners is not None:
        owners = [Principal(owner.principal_type, owner.principal_name) for owner in request.owners]
        tokens = [token for token in tokens if any(concerns(token, owner) for owner in owners)]
    return DescribeDelegationTokenResponse(
        tokens=[_described(token, hmacs, context.api_version) for token in tokens]
    )


def _described(token: DelegationTokenRecord, hmacs: TokenHmacs, version: int) -> DescribedDelegationToken:
    owner = principal_of(token.owner)
    described = DescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=hmacs.of(token.token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=renewer.type, principal_name=renewer.name)
            for renewer in map(principal_of, token.renewers)
        ],
    )
    if version >= REQUESTERS_SINCE:
        requester = principal_of(token.requester)
        described.token_requester_principal_type = requester.type
        described.token_requester_principal_name = requester.name
    return described
