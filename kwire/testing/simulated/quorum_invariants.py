"""Invariants of the metadata quorum, which are checked after each event.

- An epoch has at most one leader.
- The high watermark of a node does not decrease while its process runs. Below it, all nodes have the same
  batches: same offsets, epochs and CRCs. So no committed record is lost when the leader changes.
"""

from __future__ import annotations

from kwire.testing.simulated.nodes import ClusterNode
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import batches

READ_BYTES = 1 << 24


class QuorumInvariants:
    """The leaders and committed batches of the quorum, as all nodes see them together."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}
        self._committed: dict[int, tuple[int, int, int]] = {}
        """Next offset, epoch and CRC of each committed batch, by base offset."""
        self._checked: dict[int, tuple[int, int]] = {}
        """Start count and checked offset of each node."""

    def check(self, node: ClusterNode) -> None:
        """Check a running node. Raises Violation if an invariant does not hold."""
        quorum = node.node.quorum
        if quorum.failed:
            return
        if quorum.leads:
            leader = self._leaders.setdefault(quorum.epoch, node.node_id)
            if leader != node.node_id:
                raise Violation(f"epoch {quorum.epoch} of the quorum has leaders {leader} and {node.node_id}")
        log = quorum.log
        life, checked = self._checked.get(node.node_id, (0, 0))
        if life != node.start_count:
            checked = 0
        high_watermark = min(log.high_watermark, log.written_end_offset)
        if high_watermark < checked:
            raise Violation(f"the high watermark of the quorum went back on {node.name} to {high_watermark}")
        start = max(checked, log.start_offset)
        if high_watermark > start and log.log.failure is None:
            content = log.log.read(start, max_bytes=READ_BYTES, up_to_offset=high_watermark).read()
            for _, header in batches(content):
                found = (header.next_offset, header.leader_epoch, header.crc)
                known = self._committed.setdefault(header.base_offset, found)
                if found != known:
                    raise Violation(
                        f"{node.name} has {found} (next offset, epoch, CRC) at offset "
                        f"{header.base_offset} of the metadata log, where {known} is committed"
                    )
        self._checked[node.node_id] = (node.start_count, high_watermark)
