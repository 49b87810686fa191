"""Alert when a consumer group falls behind."""

from collections.abc import Callable

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec


def check_lag(servers: str, group: str, topic: str, limit: int, alert: Callable[[str], None]) -> None:
    """Call `alert` if the group is `limit` or more records behind on the topic."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        [described] = admin.describe_topics([topic])
        partitions = [TopicPartition(topic, one["partition_index"]) for one in described["partitions"]]
        committed = admin.list_group_offsets({group: partitions})[group]
        ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        starts = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    finally:
        admin.close()
    lag = 0
    for partition in partitions:
        position = max(committed[partition].offset, starts[partition].offset)  # -1 before the first commit
        lag += ends[partition].offset - position
    if lag >= limit:
        alert(f"{group} is {lag} records behind on {topic}")
