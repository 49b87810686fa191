"""Planted bugs of elected controllers. They remove safeguards of the I/O code around the raft state machine.

The planted bugs of the state machine itself are in `simulation.quorum.planted_bugs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kwire.broker.controller.runtime import ControllerRuntime
from kwire.broker.raft.decisions import Decisions
from kwire.broker.raft.fetching import Fetching
from kwire.broker.raft.outputs import Remember
from kwire.broker.raft.quorum import Quorum
from kwire.broker.raft.roles import Stage
from kwire.broker.raft.snapshots import Snapshot
from kwire.wire.errors import ApiError
from kwire.wire.schema import Message
from simulation.storage.planted_bugs import PlantedBug, SetAttribute


def _a_controller_is_active_before_its_epoch_is_committed(replace: SetAttribute) -> None:
    original = Decisions.append_controls

    def append_controls(self: Decisions, epoch: int, controls: Sequence[tuple[int, Message]]) -> int:
        offset = original(self, epoch, controls)
        assert self._lead is not None
        self._lead.begins_at = -1
        self.advance_to(self._log.high_watermark)
        return offset

    replace(Decisions, "append_controls", append_controls)


def _a_former_leader_keeps_its_uncommitted_records(replace: SetAttribute) -> None:
    original = Decisions.end

    def end(self: Decisions, reason: ApiError) -> None:
        kept = list(self._appended)
        original(self, reason)
        self._appended.extend(kept)

    replace(Decisions, "end", end)


def _controllers_respond_before_a_majority_has_the_records(replace: SetAttribute) -> None:
    original = ControllerRuntime.submit

    def submit(self: ControllerRuntime, command: Any, on_done: Any) -> None:
        original(self, command, on_done)
        self._host.call_soon(lambda: self.committed(self._latest.offset))

    replace(ControllerRuntime, "submit", submit)


def _voters_fetch_before_their_log_is_synced(replace: SetAttribute) -> None:
    def is_settled(self: Fetching) -> bool:
        return self.stage is not Stage.INSTALLING and not self._log.awaits_sync

    replace(Fetching, "is_settled", property(is_settled))


def _quorum_state_is_not_durable_before_outputs_are_executed(replace: SetAttribute) -> None:
    original = Quorum._remember

    def remember(self: Quorum, remember: Remember) -> None:
        original(self, remember._replace(is_promise=False))

    replace(Quorum, "_remember", remember)


def _the_bootstrap_snapshot_is_loaded_as_committed_metadata(replace: SetAttribute) -> None:
    replace(Snapshot, "is_bootstrap", property(lambda self: False))


PLANTED_BUGS = [
    PlantedBug(
        "a controller is active before its epoch is committed",
        _a_controller_is_active_before_its_epoch_is_committed,
        14,
    ),
    PlantedBug(
        "a former leader keeps its uncommitted records", _a_former_leader_keeps_its_uncommitted_records, 8
    ),
    PlantedBug(
        "controllers respond before a majority has the records",
        _controllers_respond_before_a_majority_has_the_records,
        8,
    ),
    PlantedBug("voters fetch before their log is synced", _voters_fetch_before_their_log_is_synced, 12),
    PlantedBug(
        "quorum-state is not durable before outputs are executed",
        _quorum_state_is_not_durable_before_outputs_are_executed,
        19,
    ),
    PlantedBug(
        "the bootstrap snapshot is loaded as committed metadata",
        _the_bootstrap_snapshot_is_loaded_as_committed_metadata,
        2,
    ),
]
