"""DescribeClientQuotas and AlterClientQuotas v0–1: the quotas of clients in the metadata. KIP-546."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.error_responses import NO_FAULT
from kwire.broker.controller.commands import AlterClientQuotas, Fault
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
)
from kwire.wire.messages.alter_client_quotas import EntityData as AlteredEntityData
from kwire.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.context import Delayed
    from kwire.broker.api.request.ports import BrokerRole, ControllerRequestContext, ControllerRole
    from kwire.broker.metadata.image import QuotaEntity

IP: Final = "ip"
KINDS: Final = ("user", "client-id", IP)


class Match(IntEnum):
    """The match types of a filter component, with the numbers of the protocol."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


def describe_client_quotas(
    node: BrokerRole, _context: ControllerRequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Return the quotas of each entity that matches all components of the filter.

    With `strict`, entities that also have a type without a component do not match. Raises ApiError
    INVALID_REQUEST for a malformed filter, or UNSUPPORTED_VERSION for an unknown entity type.
    """
    requested: dict[str, ComponentData] = {}
    for component in request.components:
        kind = component.entity_type
        _check(component, is_second=kind in requested)
        requested[kind] = component
    if IP in requested and len(requested) > 1:
        raise _invalid(
            "Invalid entity filter component combination. "
            "IP filter component should not be used with user or clientId filter component."
        )
    return DescribeClientQuotasResponse(
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[ValueData(key=key, value=value) for key, value in quotas.items()],
            )
            for entity, quotas in node.image.quotas.items()
            if _matches(entity, requested, is_strict=request.strict)
        ],
    )


def alter_client_quotas(
    node: ControllerRole, context: ControllerRequestContext, request: AlterClientQuotasRequest
) -> Delayed:
    """Alter quotas on the controller. Return one result per entity."""

    def respond(faults: dict[QuotaEntity, Fault | None]) -> AlterClientQuotasResponse:
        return AlterClientQuotasResponse(
            entries=[
                AlteredEntryData(
                    error_code=code,
                    error_message=message,
                    entity=[AlteredEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                )
                for entity, (code, message) in (
                    (entity, fault or NO_FAULT) for entity, fault in faults.items()
                )
            ]
        )

    entries = [
        (
            tuple(sorted({one.entity_type: one.entity_name for one in entry.entity}.items())),
            [(op.key, None if op.remove else op.value) for op in entry.ops],
        )
        for entry in request.entries
    ]
    return submit(node, context, AlterClientQuotas(entries, request.validate_only), respond)


def _check(component: ComponentData, *, is_second: bool) -> None:
    kind, how = component.entity_type, component.match_type
    if not kind:
        raise _invalid("Invalid empty entity type.")
    if is_second:
        raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in KINDS:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
    if how == Match.EXACT:
        if component.match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    elif how in (Match.DEFAULT, Match.ANY):
        if component.match is not None:
            name = "MATCH_TYPE_DEFAULT" if how == Match.DEFAULT else "MATCH_TYPE_SPECIFIED"
            raise _invalid(f"Request specified {name}, but also specified a match string.")
    else:
        raise _invalid(f"Unknown match type {how}")


def _matches(entity: QuotaEntity, requested: dict[str, ComponentData], *, is_strict: bool) -> bool:
    if is_strict and len(entity) != len(requested):
        return False
    names = dict(entity)
    return all(
        kind in names and (component.match_type == Match.ANY or names[kind] == component.match)
        for kind, component in requested.items()
    )


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
