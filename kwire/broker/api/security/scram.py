"""DescribeUserScramCredentials v0, AlterUserScramCredentials v0: SCRAM credentials of users. KIP-554.

A broker describes the credentials in its metadata image. The users in the response are in the order of the
request, or sorted by name if the request is for all users.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import Delayed
from kwire.broker.api.request.error_responses import NO_FAULT
from kwire.broker.controller.commands import AlterScramCredentials, Fault
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kwire.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole, ControllerRequestContext, ControllerRole
    from kwire.broker.metadata.image import MetadataImage

DUPLICATE_USER: Final = "Cannot describe SCRAM credentials for the same user twice in a single request: "
UNKNOWN_USER: Final = "Attempt to describe a user credential that does not exist: "


def describe_user_scram_credentials(
    node: BrokerRole, _context: ControllerRequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Return one result per user. An empty or null list means all users with credentials."""
    image = node.image
    if request.users:
        times = Counter(user.name for user in request.users)
    else:
        times = Counter(sorted({name for _, name in image.scram_credentials}))
    return DescribeUserScramCredentialsResponse(
        results=[_describe(image, name, is_twice=count > 1) for name, count in times.items()]
    )


def _describe(image: MetadataImage, name: str, *, is_twice: bool) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name)
    if is_twice:
        result.error_code, result.error_message = ErrorCode.DUPLICATE_RESOURCE, DUPLICATE_USER + name
        return result
    result.credential_infos = [
        CredentialInfo(mechanism=mechanism.code, iterations=record.iterations)
        for mechanism in SCRAM_MECHANISMS.values()
        if (record := image.scram_credentials.get((mechanism.code, name))) is not None
    ]
    if not result.credential_infos:
        result.error_code, result.error_message = ErrorCode.RESOURCE_NOT_FOUND, UNKNOWN_USER + name
    return result


def alter_user_scram_credentials(
    node: ControllerRole, context: ControllerRequestContext, request: AlterUserScramCredentialsRequest
) -> Delayed:
    """Alter the credentials on the controller. Return one result per user."""

    def respond(faults: dict[str, Fault | None]) -> AlterUserScramCredentialsResponse:
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
                for name, (code, message) in ((name, fault or NO_FAULT) for name, fault in faults.items())
            ]
        )

    return submit(node, context, AlterScramCredentials(request.deletions, request.upsertions), respond)
