"""DescribeClientQuotas, compared with Apache Kafka 4.3.1, for quotas in the metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kwire.broker.api.cluster.quotas import describe_client_quotas
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.wire.errors import ApiError
from kwire.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from kwire.wire.records.metadata import ClientQuotaRecord, EntityData
from tests.node_harness import NodeHarness

EXACT, DEFAULT, ANY = 0, 1, 2
QUOTAS: list[dict[str, str | None]] = [
    {"user": "alice"},
    {"user": None},
    {"client-id": "c", "user": "alice"},
    {"client-id": "c"},
    {"ip": "127.0.0.1"},
]
Component = tuple[str, int, str | None]


def image_with_quotas() -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    for number, entity in enumerate(QUOTAS):
        named = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
        delta.replay(ClientQuotaRecord(entity=named, key="producer_byte_rate", value=float(number)))
    return delta.apply(1, 1)


def request(*components: Component, strict: bool = False) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=match_type, match=name)
            for kind, match_type, name in components
        ],
        strict=strict,
    )


def described_quotas(*components: Component, strict: bool = False) -> list[int]:
    """Return the indexes of the described quotas."""
    node: Any = SimpleNamespace(image=image_with_quotas())
    context: Any = None
    entries = describe_client_quotas(node, context, request(*components, strict=strict)).entries
    assert entries is not None
    for entry in entries:
        (value,) = entry.values
        assert value.key == "producer_byte_rate"
        assert {one.entity_type: one.entity_name for one in entry.entity} == QUOTAS[int(value.value)]
    return [int(entry.values[0].value) for entry in entries]


@pytest.mark.parametrize(
    ("components", "expected", "expected_strict"),
    [
        ([], [0, 1, 2, 3, 4], []),
        ([("user", ANY, None)], [0, 1, 2], [0, 1]),
        ([("user", EXACT, "alice")], [0, 2], [0]),
        ([("user", DEFAULT, None)], [1], [1]),
        ([("user", EXACT, "alice"), ("client-id", ANY, None)], [2], [2]),
        ([("client-id", EXACT, "none")], [], []),
        ([("ip", ANY, None)], [4], [4]),
    ],
)
def test_filters_select_quotas(
    components: list[Component], expected: list[int], expected_strict: list[int]
) -> None:
    assert described_quotas(*components) == expected
    assert described_quotas(*components, strict=True) == expected_strict


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ([("", ANY, None)], "Invalid empty entity type."),
        (
            [("user", ANY, None), ("user", 7, "x")],
            "Entity type user cannot appear more than once in the filter.",
        ),
        ([("group", ANY, None)], "Unsupported entity type group"),
        ([("user", EXACT, None)], "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        (
            [("user", DEFAULT, "x")],
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        ([("user", ANY, "x")], "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 3, None)], "Unknown match type 3"),
        ([("user", ANY, None), ("ip", ANY, None)], "Invalid entity filter component combination."),
    ],
)
def test_an_invalid_filter_is_refused(components: list[Component], expected: str) -> None:
    with pytest.raises(ApiError) as caught:
        described_quotas(*components)
    assert str(caught.value).find(expected) >= 0
    response = NodeHarness().call(1, request(*components))
    assert (response.error_code, response.entries) == (caught.value.code, None)


def test_without_quotas_the_response_is_empty() -> None:
    response = NodeHarness().call(0, request())
    assert (response.error_code, response.entries) == (0, [])
