"""A gate that authorizes a large request in slices, between which the image changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kwire.broker.api.request.gate import SLICE_ITEMS, Gate
from kwire.broker.security.principal import Principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.wire.api_keys import ApiKey
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import Uuid
from kwire.wire.registry import RequestHeader

TOPIC_ID = Uuid(bytes(15) + b"\x07")
VERSION = 13


def test_a_topic_that_is_created_during_the_authorization_is_unknown() -> None:
    image: Any = SimpleNamespace(name_of={}.get)
    gate = Gate(lambda: image)
    gate.authorizer = StandardAuthorizer(frozenset(), allows_without_acls=True)
    data = [PartitionProduceData(index=0, records=b"")]
    topics = [TopicProduceData(topic_id=TOPIC_ID, partition_data=data) for _ in range(SLICE_ITEMS + 1)]
    request: Any = ProduceRequest(topic_data=topics)
    context: Any = SimpleNamespace(
        header=RequestHeader(ApiKey.PRODUCE, VERSION, 0, "c"),
        api_version=VERSION,
        principal=Principal("User", "ann"),
        peer_host="127.0.0.1",
        authorizer=None,
    )
    steps = gate.admit_in_slices(context, request)
    next(steps)
    image.name_of = {TOPIC_ID: "orders"}.get
    result = None
    while result is None:
        try:
            next(steps)
        except StopIteration as end:
            result = end.value
    rest, errors = result
    assert len(rest.topic_data) == 1, "only the item of the second slice has a known topic"
    assert errors
