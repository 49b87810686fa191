"""AlterUserScramCredentials: create, change and delete SCRAM credentials. KIP-554.

A request may name each user only once, even for different mechanisms. A user with an invalid change gets an
error and stays unchanged; the changes of the other users are written.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.controller.commands import AlterScramCredentials, ControllerResult, Fault
from kwire.broker.controller.scram_parser import credential_record
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import SCRAM_LEVEL, StoredRecord
from kwire.broker.security.scram_credentials import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_user_scram_credentials import (
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kwire.wire.records.metadata import RemoveUserScramCredentialRecord

_BY_CODE: Final = {mechanism.code: mechanism for mechanism in SCRAM_MECHANISMS.values()}
_TWICE: Final = Fault(
    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
)


def alter_scram_credentials(
    command: AlterScramCredentials, image: MetadataImage
) -> ControllerResult[dict[str, Fault | None]]:
    """Return the records for the valid users, and an error or None for each user.

    Deletions are checked before upsertions.
    """
    deleted: dict[str, ScramCredentialDeletion] = {}
    given: dict[str, ScramCredentialUpsertion] = {}
    faults: dict[str, Fault | None] = {}
    for deletion in command.deletions:
        name = deletion.name
        if name in faults:
            continue
        fault = _TWICE if deleted.pop(name, None) else _deletion_fault(deletion, image)
        if fault is None:
            deleted[name] = deletion
        else:
            faults[name] = fault
    for upsertion in command.upsertions:
        name = upsertion.name
        if name in faults:
            continue
        is_second = deleted.pop(name, None) or given.pop(name, None)
        fault = _TWICE if is_second else _upsertion_fault(upsertion, image)
        if fault is None:
            given[name] = upsertion
        else:
            faults[name] = fault
    records = [
        StoredRecord(RemoveUserScramCredentialRecord(name=name, mechanism=deletion.mechanism))
        for name, deletion in deleted.items()
    ]
    records += [
        StoredRecord(
            credential_record(
                name, _BY_CODE[one.mechanism], bytes(one.salt), one.iterations, bytes(one.salted_password)
            )
        )
        for name, one in given.items()
    ]
    return ControllerResult(records, {**dict.fromkeys([*deleted, *given]), **faults})


def _fault(name: str, mechanism: int, image: MetadataImage) -> Fault | None:
    if image.metadata_version < SCRAM_LEVEL:
        return Fault(ErrorCode.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
    if not name:
        return Fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in _BY_CODE:
        return Fault(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return None


def _deletion_fault(deletion: ScramCredentialDeletion, image: MetadataImage) -> Fault | None:
    fault = _fault(deletion.name, deletion.mechanism, image)
    if fault is None and (deletion.mechanism, deletion.name) not in image.scram_credentials:
        text = "Attempt to delete a user credential that does not exist"
        return Fault(ErrorCode.RESOURCE_NOT_FOUND, text)
    return fault


def _upsertion_fault(upsertion: ScramCredentialUpsertion, image: MetadataImage) -> Fault | None:
    fault = _fault(upsertion.name, upsertion.mechanism, image)
    if fault is None and upsertion.iterations < MIN_ITERATIONS:
        return Fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if fault is None and upsertion.iterations > MAX_ITERATIONS:
        return Fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if fault is None and not upsertion.salted_password:
        return Fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password must not be empty")
    return fault
