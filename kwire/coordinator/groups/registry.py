"""The registry of group types. A new type is one entry in `GROUP_TYPES`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from kwire.coordinator.groups.classic.rebalance import ClassicGroups
from kwire.coordinator.groups.consumer.heartbeat import ConsumerGroups
from kwire.coordinator.groups.group_type import GroupType
from kwire.coordinator.groups.migration import OnlineMigration
from kwire.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kwire.wire.messages.describe_groups import DescribedGroup
from kwire.wire.records import consumer_groups as records
from kwire.wire.records.groups import GroupMetadataKey, GroupMetadataValue

CLASSIC: Final[GroupType[ClassicGroups, DescribedGroup]] = GroupType(
    "classic",
    ClassicGroups,
    {GroupMetadataKey: GroupMetadataValue},
    DescribedGroup,
)
CONSUMER: Final[GroupType[ConsumerGroups, DescribedConsumerGroup]] = GroupType(
    "consumer",
    lambda registry: ConsumerGroups(registry, partial(OnlineMigration, registry, registry.of(CLASSIC))),
    {
        records.ConsumerGroupMetadataKey: records.ConsumerGroupMetadataValue,
        records.ConsumerGroupPartitionMetadataKey: records.ConsumerGroupPartitionMetadataValue,
        records.ConsumerGroupMemberMetadataKey: records.ConsumerGroupMemberMetadataValue,
        records.ConsumerGroupTargetAssignmentMetadataKey: records.ConsumerGroupTargetAssignmentMetadataValue,
        records.ConsumerGroupTargetAssignmentMemberKey: records.ConsumerGroupTargetAssignmentMemberValue,
        records.ConsumerGroupCurrentMemberAssignmentKey: records.ConsumerGroupCurrentMemberAssignmentValue,
        records.ConsumerGroupRegularExpressionKey: records.ConsumerGroupRegularExpressionValue,
    },
    DescribedConsumerGroup,
    ("Empty", "Assigning", "Reconciling", "Stable", "Dead"),
)
GROUP_TYPES: Final[Sequence[GroupType[Any, Any]]] = (CLASSIC, CONSUMER)
"""The types in the order in which groups are listed."""
