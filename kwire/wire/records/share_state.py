"""Records of __share_group_state, the delivery state of share groups. KIP-932."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int8, Int16, Int32, Int64, Message, Str, field, message


@message(key=0, versions="0")
class ShareSnapshotKey(Message):
    group_id: Str = field()
    topic_id: Uuid = field()
    partition: Int32 = field()


@message(key=0, versions="0", flexible="0+")
class ShareSnapshotValue(Message):
    """The complete share state of a partition."""

    snapshot_epoch: Int32 = field()
    state_epoch: Int32 = field()
    leader_epoch: Int32 = field()
    start_offset: Int64 = field()
    delivery_complete_count: Int32 = field(tag=0, default=-1)
    create_timestamp: Int64 = field()
    write_timestamp: Int64 = field()
    state_batches: list[StateBatch] = field()


class StateBatch(Message):
    """The delivery state and delivery count of the records in a range of offsets."""

    first_offset: Int64 = field()
    last_offset: Int64 = field()
    delivery_state: Int8 = field()
    delivery_count: Int16 = field()


@message(key=1, versions="0")
class ShareUpdateKey(Message):
    group_id: Str = field()
    topic_id: Uuid = field()
    partition: Int32 = field()


@message(key=1, versions="0", flexible="0+")
class ShareUpdateValue(Message):
    """Changes of a partition's share state since the snapshot with the same `snapshot_epoch`."""

    snapshot_epoch: Int32 = field()
    leader_epoch: Int32 = field()
    start_offset: Int64 = field()
    delivery_complete_count: Int32 = field(tag=0, default=-1)
    state_batches: list[StateBatch] = field()
