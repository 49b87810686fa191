"""Requests and responses between the nodes of a cluster."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages import alter_partition, fetch, vote
from kwire.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from kwire.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.wire.primitives import Uuid
from kwire.wire.registry import (
    API_VERSIONS,
    decode_request,
    decode_request_header,
    decode_response,
    decode_version_prefixed,
    encode_record,
    encode_request,
    encode_response,
)
from kwire.wire.schema import Message

METADATA = "__cluster_metadata"
TOPIC_ID = Uuid(b"a topic's own id")


def decode_request_frame(frame: bytes | memoryview) -> Message:
    """Decode the request in a frame without its size."""
    view = memoryview(frame)
    header, position = decode_request_header(view)
    request: Message = decode_request(header, view, position)
    return request


def encode_response_frame(version: int, response: Message) -> bytes:
    """Encode a response frame without its size."""
    pieces = encode_response(response.API_KEY, version, 7, response)
    return b"".join(bytes(piece) for piece in pieces)[4:]  # type: ignore[arg-type]


SAID: list[tuple[int, Message, Message]] = [
    (
        2,
        vote.VoteRequest(
            cluster_id="c",
            voter_id=2,
            topics=[
                vote.RequestTopicData(
                    topic_name=METADATA,
                    partitions=[
                        vote.RequestPartitionData(
                            replica_epoch=3, replica_id=1, last_offset_epoch=2, last_offset=99, pre_vote=True
                        )
                    ],
                )
            ],
        ),
        vote.VoteResponse(
            topics=[
                vote.ResponseTopicData(
                    topic_name=METADATA,
                    partitions=[vote.ResponsePartitionData(leader_id=-1, leader_epoch=3, vote_granted=True)],
                )
            ],
            node_endpoints=[vote.NodeEndpoint(node_id=3, host="h", port=50_000)],
        ),
    ),
    (
        3,
        alter_partition.AlterPartitionRequest(
            broker_id=1,
            broker_epoch=30,
            topics=[
                alter_partition.RequestTopicData(
                    topic_id=TOPIC_ID,
                    partitions=[
                        alter_partition.RequestPartitionData(
                            leader_epoch=4,
                            new_isr_with_epochs=[
                                alter_partition.BrokerState(broker_id=1, broker_epoch=30),
                                alter_partition.BrokerState(broker_id=2),
                            ],
                            partition_epoch=9,
                        )
                    ],
                )
            ],
        ),
        alter_partition.AlterPartitionResponse(
            topics=[
                alter_partition.ResponseTopicData(
                    topic_id=TOPIC_ID,
                    partitions=[
                        alter_partition.ResponsePartitionData(error_code=ErrorCode.INELIGIBLE_REPLICA)
                    ],
                )
            ],
        ),
    ),
    (
        2,
        BrokerHeartbeatRequest(
            broker_id=3, broker_epoch=40, current_metadata_offset=41, cordoned_log_dirs=[]
        ),
        BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False),
    ),
    (
        18,
        fetch.FetchRequest(
            replica_state=fetch.ReplicaState(replica_id=2, replica_epoch=40),
            max_wait_ms=500,
            min_bytes=1,
            session_id=5,
            session_epoch=1,
            topics=[
                fetch.FetchTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        fetch.FetchPartition(
                            current_leader_epoch=4,
                            fetch_offset=7,
                            last_fetched_epoch=3,
                            partition_max_bytes=1 << 20,
                            replica_directory_id=Uuid(b"of a directory  "),
                            high_watermark=6,
                        )
                    ],
                )
            ],
        ),
        fetch.FetchResponse(
            responses=[
                fetch.FetchableTopicResponse(
                    topic_id=TOPIC_ID,
                    partitions=[
                        fetch.PartitionData(
                            diverging_epoch=fetch.EpochEndOffset(epoch=2, end_offset=5),
                            aborted_transactions=None,
                            records=b"",
                        )
                    ],
                )
            ],
        ),
    ),
]


@pytest.mark.parametrize(("version", "request_", "response"), SAID, ids=lambda one: type(one).__name__)
def test_internode_messages_round_trip(version: int, request_: Message, response: Message) -> None:
    assert decode_request_frame(encode_request(request_, version, 7, "node-1")[4:]) == request_
    response_class = API_VERSIONS[request_.API_KEY].response_class
    assert decode_response(response_class, version, encode_response_frame(version, response)) == (7, response)


def test_envelope_contains_request_and_response_with_headers() -> None:
    """KIP-590: the embedded frames have no size prefix."""
    wanted = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000)
    principal = DefaultPrincipalData(type="User", name="ANONYMOUS")
    packed = EnvelopeRequest(
        request_data=encode_request(wanted, 2, 7, "admin")[4:],
        request_principal=encode_record(principal, 0),
        client_host_address=bytes([127, 0, 0, 1]),
    )
    unpacked = decode_request_frame(encode_request(packed, 0, 1, "broker-1")[4:])
    assert isinstance(unpacked, EnvelopeRequest)
    assert decode_request_frame(unpacked.request_data) == wanted
    assert unpacked.request_principal == bytes.fromhex("0000 05") + b"User" + b"\x0aANONYMOUS\x00\x00"
    assert decode_version_prefixed(DefaultPrincipalData, unpacked.request_principal) == principal

    answer = ElectLeadersResponse(error_code=ErrorCode.NOT_CONTROLLER)
    reply = EnvelopeResponse(response_data=encode_response_frame(2, answer))
    _, received = decode_response(EnvelopeResponse, 0, encode_response_frame(0, reply))
    assert received.response_data is not None
    assert decode_response(ElectLeadersResponse, 2, received.response_data) == (7, answer)
