"""The ACL APIs of brokers and controllers without an authorizer: results, and requests with unknown codes."""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.raw import comparable
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_envelope import LOCAL, principal
from interop.scenarios.tools_controller import controller_of
from interop.wire import Fields, decode_response, encode_request, versions_of

TOPIC, LITERAL, READ, ALLOW = 2, 3, 3, 3
CODES = range(-1, 19)
CREATION_CODES = ("ResourceType", "ResourcePatternType", "Operation", "PermissionType")
FILTER_CODES = ("ResourceTypeFilter", "PatternTypeFilter", "Operation", "PermissionType")


def creation(**changes: Any) -> Fields:
    return {
        "ResourceType": TOPIC,
        "ResourceName": "raw-acls",
        "ResourcePatternType": LITERAL,
        "Principal": "User:alice",
        "Host": "*",
        "Operation": READ,
        "PermissionType": ALLOW,
        **changes,
    }


def acl_filter(**changes: Any) -> Fields:
    return {
        "ResourceTypeFilter": TOPIC,
        "ResourceNameFilter": "raw-acls",
        "PatternTypeFilter": LITERAL,
        "PrincipalFilter": None,
        "HostFilter": None,
        "Operation": READ,
        "PermissionType": ALLOW,
        **changes,
    }


def cases() -> dict[str, tuple[str, Fields]]:
    """Return requests by label: results in each form, and each code in each field."""
    found: dict[str, tuple[str, Fields]] = {
        "describe": ("DescribeAcls", acl_filter()),
        "describe all": ("DescribeAcls", acl_filter(ResourceNameFilter=None)),
        "create nothing": ("CreateAcls", {"Creations": []}),
        "create": ("CreateAcls", {"Creations": [creation(), creation(Host="10.0.0.1"), creation()]}),
        "create for nobody": ("CreateAcls", {"Creations": [creation(Principal="nobody", ResourceName="")]}),
        "delete nothing": ("DeleteAcls", {"Filters": []}),
        "delete": ("DeleteAcls", {"Filters": [acl_filter(), acl_filter(HostFilter="*"), acl_filter()]}),
    }
    for code in CODES:
        for name in CREATION_CODES:
            request = {"Creations": [creation(), creation(**{name: code})]}
            found[f"create {name} {code}"] = "CreateAcls", request
        for name in FILTER_CODES:
            found[f"describe {name} {code}"] = "DescribeAcls", acl_filter(**{name: code})
            request = {"Filters": [acl_filter(), acl_filter(**{name: code})]}
            found[f"delete {name} {code}"] = "DeleteAcls", request
    return found


def outcomes(bootstrap: str) -> Fields:
    seen: Fields = {}
    for label, (api, fields) in cases().items():
        versions = versions_of(api)
        for version in versions if not label[-1].isdigit() else versions[-1:]:
            with RawClient(bootstrap) as client:
                frame = encode_request(api, version, fields)
                seen[f"{label} v{version}"] = comparable(client.outcome(frame, api, version))
    return seen


@scenario(seconds=120)
def on_a_broker(broker: Broker) -> Any:
    """Describe, create and delete ACLs on a broker, which forwards creations and deletions."""
    return outcomes(broker.bootstrap)


@scenario(seconds=120)
def on_a_controller(broker: Broker) -> Any:
    """Describe, create and delete ACLs on a controller's listener."""
    return outcomes(controller_of(broker))


@scenario(seconds=120)
def forwarded(broker: Broker) -> Any:
    """Send the ACL requests to the controller in an Envelope, as another broker forwards them."""
    seen: Fields = {}
    for label, (api, fields) in cases().items():
        version = versions_of(api)[-1]
        envelope = {
            "RequestData": encode_request(api, version, fields),
            "RequestPrincipal": principal(),
            "ClientHostAddress": LOCAL,
        }
        with RawClient(controller_of(broker)) as client:
            response = client.outcome(encode_request("Envelope", 0, envelope), "Envelope", 0)
        if isinstance(response, dict) and response["ResponseData"]:
            response["ResponseData"] = decode_response(api, version, response["ResponseData"])[1]
        seen[label] = comparable(response)
    return seen
