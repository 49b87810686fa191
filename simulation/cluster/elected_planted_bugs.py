"""Safeguards of elected controllers, taken out by hand one at a time: how a node drives its quorum.

Those of the machine itself are in `simulation.quorum.planted_bugs`.
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
from kwire.wire.errors import ApiError
from kwire.wire.schema import Message
from simulation.storage.planted_bugs import PlantedBug, SetAttribute


def _active_before_its_epoch_is_committed(replace: SetAttribute) -> None:
    original = Decisions.append_controls

    def append_controls(self: Decisions, epoch: int, controls: Sequence[tuple[int, Message]]) -> int:
        offset = original(self, epoch, controls)
        assert self._lead is not None
        self._lead.begins_at = -1
        self.advance_to(self._log.high_watermark)
        return offset

    replace(Decisions, "append_controls", append_controls)


def _what_was_decided_is_kept_by_who_leads_no_more(replace: SetAttribute) -> None:
    original = Decisions.end

    def end(self: Decisions, reason: ApiError) -> None:
        kept = list(self._appended)
        original(self, reason)
        self._appended.extend(kept)

    replace(Decisions, "end", end)


def _commands_are_answered_before_a_majority_has_them(replace: SetAttribute) -> None:
    original = ControllerRuntime.submit

    def submit(self: ControllerRuntime, command: Any, on_done: Any) -> None:
        original(self, command, on_done)
        self._host.call_soon(lambda: self.committed(self._latest.offset))

    replace(ControllerRuntime, "submit", submit)


def _voters_fetch_on_before_their_disk_has_it(replace: SetAttribute) -> None:
    def is_settled(self: Fetching) -> bool:
        return self.stage is not Stage.INSTALLING and not self._log.awaits_sync

    replace(Fetching, "is_settled", property(is_settled))


def _promises_are_not_waited_for(replace: SetAttribute) -> None:
    original = Quorum._remember

    def remember(self: Quorum, remember: Remember) -> None:
        original(self, remember._replace(is_promise=False))

    replace(Quorum, "_remember", remember)


PLANTED_BUGS = [
    PlantedBug("active before its epoch is committed", _active_before_its_epoch_is_committed, 9),
    PlantedBug("decided and kept by who leads no more", _what_was_decided_is_kept_by_who_leads_no_more, 8),
    PlantedBug("answered before a majority has it", _commands_are_answered_before_a_majority_has_them, 3),
    PlantedBug("voters fetch on before their disk has it", _voters_fetch_on_before_their_disk_has_it, 180),
    PlantedBug("promises are not waited for", _promises_are_not_waited_for, 122),
]
