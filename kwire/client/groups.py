"""Groups of the classic and the consumer protocol, with members and offsets in one form."""

from __future__ import annotations

from typing import Final, NamedTuple

from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import raise_for_code
from kwire.wire.codegen import decode
from kwire.wire.errors import WireError
from kwire.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kwire.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from kwire.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kwire.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kwire.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kwire.wire.primitives import TopicPartition

CLASSIC, CONSUMER = "classic", "consumer"
DESCRIBED: Final = (CLASSIC, CONSUMER, "")
"""Types of groups whose members can be described. Old brokers have one type, and return an empty text."""


class GroupMember(NamedTuple):
    """A member with its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class Group(NamedTuple):
    """A group as its coordinator describes it."""

    name: str
    type: str
    state: str
    coordinator: int
    assignor: str
    members: tuple[GroupMember, ...]


def list_groups(cluster: ClusterClient) -> dict[str, ListedGroup]:
    """Return the groups of all coordinators, sorted by id. Raises ApiError, Disconnected."""

    def attempt(node_id: int) -> list[ListedGroup]:
        response = cluster.send_to_node(node_id, ListGroupsRequest(), ListGroupsResponse)
        raise_for_code(response.error_code, None, f"the groups of broker {node_id}")
        return response.groups

    found = {
        group.group_id: group
        for node_id in sorted(cluster.brokers())
        for group in cluster.retry(lambda node_id=node_id: attempt(node_id))  # type: ignore[misc]
    }
    return dict(sorted(found.items()))


def describe_group(cluster: ClusterClient, known: ListedGroup) -> Group:
    """Describe a group with its members, or without members if its type is not in DESCRIBED.

    Raises ApiError, Disconnected.
    """
    if known.group_type.lower() not in DESCRIBED:
        node_id = cluster.retry(lambda: cluster.coordinator(known.group_id))
        return Group(known.group_id, known.group_type, known.group_state, node_id, "", ())
    if known.group_type.lower() == CONSUMER:
        return cluster.retry(lambda: describe_consumer_group(cluster, known.group_id))
    found = cluster.retry(lambda: describe_classic_group(cluster, known.group_id))
    return found._replace(type=known.group_type or found.type)


def describe_consumer_group(cluster: ClusterClient, name: str) -> Group:
    """Describe a group of the consumer protocol (KIP-848), without retries. Raises ApiError, Disconnected."""
    node_id = cluster.coordinator(name)
    request = ConsumerGroupDescribeRequest(group_ids=[name])
    found = cluster.send_to_node(node_id, request, ConsumerGroupDescribeResponse).groups[0]
    raise_for_code(found.error_code, found.error_message, f"group {name}")
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple((topic.topic_name, index) for topic in member.assignment.topic_partitions
                  for index in topic.partitions),
        )
        for member in found.members
    )  # fmt: skip
    return Group(name, CONSUMER, found.group_state, node_id, found.assignor_name, members)


def describe_classic_group(cluster: ClusterClient, name: str) -> Group:
    """Describe a group of the classic protocol, without retries. Raises ApiError, Disconnected."""
    node_id = cluster.coordinator(name)
    found = cluster.send_to_node(
        node_id, DescribeGroupsRequest(groups=[name]), DescribeGroupsResponse
    ).groups[0]
    raise_for_code(found.error_code, found.error_message, f"group {name}")
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assigned(bytes(member.member_assignment)),
        )
        for member in found.members
    )
    return Group(name, CLASSIC, found.group_state, node_id, found.protocol_data, members)


def fetch_committed_offsets(cluster: ClusterClient, name: str) -> dict[TopicPartition, int]:
    """Return all committed offsets of a group. Raises ApiError, Disconnected."""
    request = OffsetFetchRequest(group_id=name, topics=None)

    def attempt() -> dict[TopicPartition, int]:
        response = cluster.send_to_coordinator(name, request, OffsetFetchResponse)
        raise_for_code(response.error_code, None, f"group {name}")
        found = {}
        for topic in response.topics:
            for one in topic.partitions:
                raise_for_code(one.error_code, None, f"group {name}, {topic.name}-{one.partition_index}")
                if one.committed_offset >= 0:
                    found[topic.name, one.partition_index] = one.committed_offset
        return found

    return cluster.retry(attempt)


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the assignment of a consumer. Empty for other protocol types, which have their own formats."""
    most = ConsumerProtocolAssignment.VERSIONS[1]
    try:
        found, _ = decode(ConsumerProtocolAssignment, min(int.from_bytes(data[:2], "big"), most), data, 2)
    except WireError:
        return ()
    return tuple((topic.topic, index) for topic in found.assigned_partitions for index in topic.partitions)
