"""Safeguards of the quorum taken out by hand, one at a time, which the simulation must find."""

from __future__ import annotations

from typing import Any

from kwire.broker.raft import listening
from kwire.broker.raft.calls import Calls
from kwire.broker.raft.elections import Tally, may_have_vote
from kwire.broker.raft.fetching import Fetching
from kwire.broker.raft.leading import UNKNOWN, Leading
from kwire.broker.raft.membership import Membership
from kwire.broker.raft.outputs import Output, Remember
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.roles import QuorumRole, Stage
from kwire.broker.raft.standing import Standing
from kwire.broker.raft.voters import Voter, VoterSet
from simulation.quorum.log import SimulatedLog
from simulation.storage.planted_bugs import PlantedBug, SetAttribute


def _nothing(*arguments: object, **named: object) -> None:
    return None


def _votes_are_not_waited_for(replace: SetAttribute) -> None:
    original = Standing._remember

    def remember(self: Standing, *, is_promise: bool) -> list[Output]:
        is_lead = self.role is QuorumRole.LEADER
        return original(self, is_promise=is_promise and is_lead)

    replace(Standing, "_remember", remember)


def _the_lead_is_not_waited_for(replace: SetAttribute) -> None:
    original = Standing._remember

    def remember(self: Standing, *, is_promise: bool) -> list[Output]:
        return original(self, is_promise=is_promise and self.role is not QuorumRole.LEADER)

    replace(Standing, "_remember", remember)


def _who_votes_forgets_for_whom(replace: SetAttribute) -> None:
    original = Standing._remember

    def remember(self: Standing, *, is_promise: bool) -> list[Output]:
        return [
            output._replace(state=output.state._replace(voted_id=-1))
            if isinstance(output, Remember)
            else output
            for output in original(self, is_promise=is_promise)
        ]

    replace(Standing, "_remember", remember)


def _votes_are_given_twice(replace: SetAttribute) -> None:
    def asked(*arguments: Any, **named: Any) -> bool:
        return may_have_vote(*arguments, **{**named, "voted": None})

    replace(listening, "may_have_vote", asked)


def _any_log_will_do(replace: SetAttribute) -> None:
    def asked(*arguments: Any, **named: Any) -> bool:
        return may_have_vote(*arguments, **{**named, "is_up_to_date": True})

    replace(listening, "may_have_vote", asked)


def _a_leader_votes_for_others(replace: SetAttribute) -> None:
    def asked(role: QuorumRole, *arguments: Any, **named: Any) -> bool:
        return may_have_vote(QuorumRole.UNATTACHED, *arguments, **{**named, "leader_id": -1})

    replace(listening, "may_have_vote", asked)


def _former_epochs_are_committed(replace: SetAttribute) -> None:
    def commit(self: Leading, synced_offset: int) -> bool:
        self.epoch_offset = None if self.epoch_offset is None else min(self.epoch_offset, UNKNOWN)
        return original(self, synced_offset)

    original = Leading.commit
    replace(Leading, "commit", commit)


def _a_leader_counts_what_it_has_not_synced(replace: SetAttribute) -> None:
    original = Leading.commit
    replace(Leading, "commit", lambda self, synced_offset: original(self, self._log.end_offset))


def _fetches_come_before_syncs(replace: SetAttribute) -> None:
    def is_settled(self: Fetching) -> bool:
        return self.stage is not Stage.INSTALLING and not self._log.awaits_sync

    replace(Fetching, "is_settled", property(is_settled))


def _it_stands_while_a_snapshot_is_installed(replace: SetAttribute) -> None:
    def is_settled(self: Fetching) -> bool:
        return self.synced_offset >= self._log.end_offset and not self._log.awaits_sync

    replace(Fetching, "is_settled", property(is_settled))


def _a_cut_is_not_waited_for(replace: SetAttribute) -> None:
    def is_settled(self: Fetching) -> bool:
        is_durable = not self._terms.may_vote or self.synced_offset >= self._log.end_offset
        return is_durable and self.stage is not Stage.INSTALLING

    replace(Fetching, "is_settled", property(is_settled))


def _half_is_a_majority(replace: SetAttribute) -> None:
    replace(VoterSet, "majority", property(lambda self: (len(self) + 1) // 2))


def _directories_do_not_matter(replace: SetAttribute) -> None:
    replace(Standing, "_is_me", lambda self, key: self._terms.node_id == key.replica_id)
    replace(Voter, "is_named", lambda self, key: self.key.replica_id == key.replica_id)


def _voters_change_twice_at_once(replace: SetAttribute) -> None:
    replace(Membership, "_is_changing", False)
    replace(Membership, "_is_uncommitted", False)


def _voters_change_too_early(replace: SetAttribute) -> None:
    original = Membership._why_not

    def why_not(self: Membership) -> Any:
        reason = original(self)
        return None if reason is not None and self._leading.high_watermark < 0 else reason

    replace(Membership, "_why_not", why_not)


def _voters_count_once_they_are_committed(replace: SetAttribute) -> None:
    def voters(self: SimulatedLog) -> VoterSet:
        return self.history.voters_at(self.high_watermark - 1) or self.history.voters

    replace(SimulatedLog, "voters", property(voters))


def _nobody_is_asked_before_an_election(replace: SetAttribute) -> None:
    original = Standing._count

    def count(self: Standing, now_ms: int) -> list[Output]:
        if self.role is QuorumRole.PROSPECTIVE:
            return self._become_candidate(now_ms)
        return original(self, now_ms)

    replace(Standing, "_count", count)


def _old_answers_count(replace: SetAttribute) -> None:
    replace(Calls, "forget", _nothing)


def _who_is_not_heard_leads_on(replace: SetAttribute) -> None:
    replace(Leading, "is_alone", lambda self, now_ms: False)


def _a_former_leader_is_nobody(replace: SetAttribute) -> None:
    original = Standing._recall

    def recall(self: Standing, remembered: QuorumState, now_ms: int) -> None:
        if remembered.leader_id != self._terms.node_id:
            original(self, remembered, now_ms)

    replace(Standing, "_recall", recall)


def _votes_are_not_recalled(replace: SetAttribute) -> None:
    replace(Standing, "_recall", _nothing)


def _the_removed_never_stand(replace: SetAttribute) -> None:
    replace(Standing, "_may_stand", property(lambda self: self.is_voter))


def _a_vote_refused_is_one(replace: SetAttribute) -> None:
    original = Tally.count
    replace(Tally, "count", lambda self, voter_id, is_granted: original(self, voter_id, is_granted=True))


PLANTED_BUGS = [
    PlantedBug("votes are not waited for", _votes_are_not_waited_for, seed=5),
    PlantedBug("the lead is not waited for", _the_lead_is_not_waited_for, seed=154),
    PlantedBug("who votes forgets for whom", _who_votes_forgets_for_whom, seed=33),
    PlantedBug("votes are given twice", _votes_are_given_twice),
    PlantedBug("any log will do", _any_log_will_do),
    PlantedBug("a leader votes for others", _a_leader_votes_for_others, seed=2),
    PlantedBug("former epochs are committed", _former_epochs_are_committed),
    PlantedBug("a leader counts what it has not synced", _a_leader_counts_what_it_has_not_synced, seed=1),
    PlantedBug("fetches come before syncs", _fetches_come_before_syncs),
    PlantedBug("it stands while a snapshot is installed", _it_stands_while_a_snapshot_is_installed, seed=1),
    PlantedBug("a cut is not waited for", _a_cut_is_not_waited_for, seed=1),
    PlantedBug("half is a majority", _half_is_a_majority, seed=7),
    PlantedBug("directories do not matter", _directories_do_not_matter, seed=184),
    PlantedBug("voters change twice at once", _voters_change_twice_at_once, seed=9),
    PlantedBug("voters change before the epoch is committed", _voters_change_too_early, seed=8),
    PlantedBug("voters count once they are committed", _voters_count_once_they_are_committed, seed=57),
    PlantedBug("nobody is asked before an election", _nobody_is_asked_before_an_election, seed=2),
    PlantedBug("old answers count", _old_answers_count, seed=44),
    PlantedBug("who is not heard leads on", _who_is_not_heard_leads_on, seed=20),
    PlantedBug("a former leader is nobody", _a_former_leader_is_nobody, seed=216),
    PlantedBug("votes are not recalled", _votes_are_not_recalled, seed=33),
    PlantedBug("the removed never stand", _the_removed_never_stand, seed=72),
    PlantedBug("a vote refused is one", _a_vote_refused_is_one),
]  # fmt: skip
