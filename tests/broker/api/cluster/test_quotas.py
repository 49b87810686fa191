"""DescribeClientQuotas, as Apache Kafka 4.3.1 answers it, of quotas that it has left in the metadata."""

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


def kept() -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    for number, entity in enumerate(QUOTAS):
        named = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
        delta.replay(ClientQuotaRecord(entity=named, key="producer_byte_rate", value=float(number)))
    return delta.apply(1, 1)


def request(*components: Component, strict: bool = False) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components
        ],
        strict=strict,
    )


def described(*components: Component, strict: bool = False) -> list[int]:
    """The numbers of those that are told."""
    node: Any = SimpleNamespace(image=kept())
    asked: Any = None
    entries = describe_client_quotas(node, asked, request(*components, strict=strict)).entries
    assert entries is not None
    for entry in entries:
        (value,) = entry.values
        assert value.key == "producer_byte_rate"
        assert {one.entity_type: one.entity_name for one in entry.entity} == QUOTAS[int(value.value)]
    return [int(entry.values[0].value) for entry in entries]


@pytest.mark.parametrize(
    ("components", "told", "strictly"),
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
def test_who_matches(components: list[Component], told: list[int], strictly: list[int]) -> None:
    assert described(*components) == told
    assert described(*components, strict=True) == strictly


@pytest.mark.parametrize(
    ("components", "told"),
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
def test_what_cannot_be_asked(components: list[Component], told: str) -> None:
    with pytest.raises(ApiError) as caught:
        described(*components)
    assert str(caught.value).find(told) >= 0
    answer = NodeHarness().call(1, request(*components))
    assert (answer.error_code, answer.entries) == (caught.value.code, None)


def test_there_are_none() -> None:
    answer = NodeHarness().call(0, request())
    assert (answer.error_code, answer.entries) == (0, [])
