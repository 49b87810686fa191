"""Planted bugs of the quorum. Each removes one safeguard, and a test checks that the simulation finds it."""

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
from kwire.host.host import InternodeTime
from simulation.quorum.log import SimulatedLog
from simulation.storage.planted_bugs import PlantedBug, SetAttribute


def _do_nothing(*arguments: object, **named: object) -> None:
    return None


def _votes_are_sent_before_quorum_state_is_durable(replace: SetAttribute) -> None:
    original = Standing._remember

    def remember(self: Standing, *, is_promise: bool) -> list[Output]:
        is_leader = self.role is QuorumRole.LEADER
        return original(self, is_promise=is_promise and is_leader)

    replace(Standing, "_remember", remember)


def _a_leader_acts_before_quorum_state_is_durable(replace: SetAttribute) -> None:
    original = Standing._remember

    def remember(self: Standing, *, is_promise: bool) -> list[Output]:
        return original(self, is_promise=is_promise and self.role is not QuorumRole.LEADER)

    replace(Standing, "_remember", remember)


def _the_candidate_of_a_vote_is_not_stored(replace: SetAttribute) -> None:
    original = Standing._remember

    def remember(self: Standing, *, is_promise: bool) -> list[Output]:
        return [
            output._replace(state=output.state._replace(voted_id=-1))
            if isinstance(output, Remember)
            else output
            for output in original(self, is_promise=is_promise)
        ]

    replace(Standing, "_remember", remember)


def _a_voter_votes_twice_in_an_epoch(replace: SetAttribute) -> None:
    def grants_vote(*arguments: Any, **named: Any) -> bool:
        return may_have_vote(*arguments, **{**named, "voted": None})

    replace(listening, "may_have_vote", grants_vote)


def _candidates_with_outdated_logs_get_votes(replace: SetAttribute) -> None:
    def grants_vote(*arguments: Any, **named: Any) -> bool:
        return may_have_vote(*arguments, **{**named, "is_up_to_date": True})

    replace(listening, "may_have_vote", grants_vote)


def _a_leader_votes_for_another_candidate(replace: SetAttribute) -> None:
    def grants_vote(role: QuorumRole, *arguments: Any, **named: Any) -> bool:
        return may_have_vote(QuorumRole.UNATTACHED, *arguments, **{**named, "leader_id": -1})

    replace(listening, "may_have_vote", grants_vote)


def _records_of_earlier_epochs_are_committed(replace: SetAttribute) -> None:
    def commit(self: Leading, synced_offset: int) -> bool:
        self.epoch_offset = None if self.epoch_offset is None else min(self.epoch_offset, UNKNOWN)
        return original(self, synced_offset)

    original = Leading.commit
    replace(Leading, "commit", commit)


def _a_leader_commits_before_its_own_sync(replace: SetAttribute) -> None:
    original = Leading.commit
    replace(Leading, "commit", lambda self, synced_offset: original(self, self._log.end_offset))


def _followers_fetch_before_their_log_is_synced(replace: SetAttribute) -> None:
    def is_settled(self: Fetching) -> bool:
        return self.stage is not Stage.INSTALLING and not self._log.awaits_sync

    replace(Fetching, "is_settled", property(is_settled))


def _a_node_becomes_candidate_while_it_installs_a_snapshot(replace: SetAttribute) -> None:
    def is_settled(self: Fetching) -> bool:
        return self.synced_offset >= self._log.end_offset and not self._log.awaits_sync

    replace(Fetching, "is_settled", property(is_settled))


def _followers_fetch_before_a_truncation_is_synced(replace: SetAttribute) -> None:
    def is_settled(self: Fetching) -> bool:
        is_durable = not self._terms.may_vote or self.synced_offset >= self._log.end_offset
        return is_durable and self.stage is not Stage.INSTALLING

    replace(Fetching, "is_settled", property(is_settled))


def _half_of_the_voters_is_a_majority(replace: SetAttribute) -> None:
    replace(VoterSet, "majority", property(lambda self: (len(self) + 1) // 2))


def _directory_ids_are_ignored(replace: SetAttribute) -> None:
    replace(Standing, "_is_me", lambda self, key: self._terms.node_id == key.replica_id)
    replace(Voter, "is_named", lambda self, key: self.key.replica_id == key.replica_id)


def _two_voter_changes_run_at_once(replace: SetAttribute) -> None:
    replace(Membership, "_is_changing", False)
    replace(Membership, "_is_uncommitted", False)


def _voters_change_before_the_leader_has_committed_in_its_epoch(replace: SetAttribute) -> None:
    original = Membership._why_not

    def why_not(self: Membership) -> Any:
        reason = original(self)
        return None if reason is not None and self._leading.high_watermark < 0 else reason

    replace(Membership, "_why_not", why_not)


def _voter_changes_take_effect_when_they_are_committed(replace: SetAttribute) -> None:
    def voters(self: SimulatedLog) -> VoterSet:
        return self.history.voters_at(self.high_watermark - 1) or self.history.voters

    replace(SimulatedLog, "voters", property(voters))


def _candidates_skip_the_pre_vote(replace: SetAttribute) -> None:
    original = Standing._count

    def count(self: Standing, now_ms: InternodeTime) -> list[Output]:
        if self.role is QuorumRole.PROSPECTIVE:
            return self._become_candidate(now_ms)
        return original(self, now_ms)

    replace(Standing, "_count", count)


def _responses_of_earlier_epochs_count(replace: SetAttribute) -> None:
    replace(Calls, "forget", _do_nothing)


def _a_leader_without_fetches_does_not_resign(replace: SetAttribute) -> None:
    replace(Leading, "is_alone", lambda self, now_ms: False)


def _a_restarted_leader_forgets_that_it_was_leader(replace: SetAttribute) -> None:
    original = Standing._recall

    def recall(self: Standing, remembered: QuorumState, now_ms: InternodeTime) -> None:
        if remembered.leader_id != self._terms.node_id:
            original(self, remembered, now_ms)

    replace(Standing, "_recall", recall)


def _quorum_state_is_not_read_at_startup(replace: SetAttribute) -> None:
    replace(Standing, "_recall", _do_nothing)


def _votes_of_the_first_election_are_not_stored(replace: SetAttribute) -> None:
    original = Standing._remember

    def remember(self: Standing, *, is_promise: bool) -> list[Output]:
        outputs = original(self, is_promise=is_promise)
        is_first = self.epoch == 1 and self._log.end_offset == 0
        return [one for one in outputs if not (is_first and isinstance(one, Remember))]

    replace(Standing, "_remember", remember)


def _a_node_with_an_empty_log_counts_as_new(replace: SetAttribute) -> None:
    original = Standing._recall

    def recall(self: Standing, remembered: QuorumState, now_ms: InternodeTime) -> None:
        if self._log.end_offset > 0:
            original(self, remembered, now_ms)
        else:
            self.epoch = 0

    replace(Standing, "_recall", recall)


def _the_first_election_skips_the_pre_vote(replace: SetAttribute) -> None:
    original = Standing._count

    def count(self: Standing, now_ms: InternodeTime) -> list[Output]:
        if self.role is QuorumRole.PROSPECTIVE and self._has_never_had_a_leader:
            return self._become_candidate(now_ms)
        return original(self, now_ms)

    replace(Standing, "_count", count)


def _removed_voters_never_become_candidates(replace: SetAttribute) -> None:
    replace(Standing, "_may_stand", property(lambda self: self.is_voter))


def _rejected_votes_count_as_granted(replace: SetAttribute) -> None:
    original = Tally.count
    replace(Tally, "count", lambda self, voter_id, is_granted: original(self, voter_id, is_granted=True))


PLANTED_BUGS = [
    PlantedBug(
        "votes are sent before quorum-state is durable",
        _votes_are_sent_before_quorum_state_is_durable,
        seed=5,
    ),
    PlantedBug(
        "a leader acts before quorum-state is durable",
        _a_leader_acts_before_quorum_state_is_durable,
        seed=306,
    ),
    PlantedBug("the candidate of a vote is not stored", _the_candidate_of_a_vote_is_not_stored, seed=33),
    PlantedBug("a voter votes twice in an epoch", _a_voter_votes_twice_in_an_epoch),
    PlantedBug("candidates with outdated logs get votes", _candidates_with_outdated_logs_get_votes),
    PlantedBug("a leader votes for another candidate", _a_leader_votes_for_another_candidate, seed=33),
    PlantedBug("records of earlier epochs are committed", _records_of_earlier_epochs_are_committed),
    PlantedBug("a leader commits before its own sync", _a_leader_commits_before_its_own_sync, seed=1),
    PlantedBug("followers fetch before their log is synced", _followers_fetch_before_their_log_is_synced),
    PlantedBug(
        "a node becomes candidate while it installs a snapshot",
        _a_node_becomes_candidate_while_it_installs_a_snapshot,
        seed=1,
    ),
    PlantedBug(
        "followers fetch before a truncation is synced",
        _followers_fetch_before_a_truncation_is_synced,
        seed=1,
    ),
    PlantedBug("half of the voters is a majority", _half_of_the_voters_is_a_majority, seed=4),
    PlantedBug("directory ids are ignored", _directory_ids_are_ignored, seed=18),
    PlantedBug("two voter changes run at once", _two_voter_changes_run_at_once, seed=9),
    PlantedBug(
        "voters change before the leader has committed in its epoch",
        _voters_change_before_the_leader_has_committed_in_its_epoch,
        seed=11,
    ),
    PlantedBug(
        "voter changes take effect when they are committed",
        _voter_changes_take_effect_when_they_are_committed,
        seed=13,
    ),
    PlantedBug("candidates skip the pre-vote", _candidates_skip_the_pre_vote, seed=2),
    PlantedBug("responses of earlier epochs count", _responses_of_earlier_epochs_count, seed=14),
    PlantedBug("a leader without fetches does not resign", _a_leader_without_fetches_does_not_resign),
    PlantedBug(
        "a restarted leader forgets that it was leader",
        _a_restarted_leader_forgets_that_it_was_leader,
        seed=33,
    ),
    PlantedBug("quorum-state is not read at startup", _quorum_state_is_not_read_at_startup, seed=33),
    PlantedBug(
        "votes of the first election are not stored", _votes_of_the_first_election_are_not_stored, seed=5
    ),
    PlantedBug("a node with an empty log counts as new", _a_node_with_an_empty_log_counts_as_new, seed=0),
    PlantedBug("the first election skips the pre-vote", _the_first_election_skips_the_pre_vote, seed=2),
    PlantedBug("removed voters never become candidates", _removed_voters_never_become_candidates, seed=120),
    PlantedBug("rejected votes count as granted", _rejected_votes_count_as_granted),
]
