"""What must be true of the quorum of a cluster after each step, however many controllers it has.

- An epoch has one leader.
- A node's high watermark does not go back within a life, and what is below that of any node is the same on
  all of them: batch by batch, epoch and CRC. So nothing that was committed is lost, whoever leads.
"""

from __future__ import annotations

from kwire.testing.simulated.nodes import ClusterNode
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import batches

READ_BYTES = 1 << 24


class QuorumInvariants:
    """The quorum as all nodes see it together."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}
        self._committed: dict[int, tuple[int, int, int]] = {}
        """The offset behind, the epoch and the CRC of each committed batch by its base offset."""
        self._checked: dict[int, tuple[int, int]] = {}
        """Of each node: which of its lives was looked at, and up to where."""

    def check(self, node: ClusterNode) -> None:
        """Look at a node that runs. Violation."""
        quorum = node.node.quorum
        if quorum.failed:
            return
        if quorum.leads:
            leader = self._leaders.setdefault(quorum.epoch, node.node_id)
            if leader != node.node_id:
                raise Violation(
                    f"epoch {quorum.epoch} of the quorum has the leaders {leader} and {node.node_id}"
                )
        log = quorum.log
        life, checked = self._checked.get(node.node_id, (0, 0))
        if life != node.start_count:
            checked = 0
        high_watermark = min(log.high_watermark, log.written_end_offset)
        if high_watermark < checked:
            raise Violation(f"the quorum's high watermark goes back on {node.name} to {high_watermark}")
        start = max(checked, log.start_offset)
        if high_watermark > start and log.log.failure is None:
            content = log.log.read(start, max_bytes=READ_BYTES, up_to_offset=high_watermark).read()
            for _, header in batches(content):
                found = (header.next_offset, header.leader_epoch, header.crc)
                known = self._committed.setdefault(header.base_offset, found)
                if found != known:
                    raise Violation(
                        f"{node.name} has {found} (next offset, epoch, CRC) at {header.base_offset} of "
                        f"the metadata, where {known} is committed"
                    )
        self._checked[node.node_id] = (node.start_count, high_watermark)
