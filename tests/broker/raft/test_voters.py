"""Voter sets and their history in the log."""

from __future__ import annotations

from kwire.broker.raft.voters import OF_CONFIGURATION, ReplicaKey, Voter, VoterHistory, VoterSet
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.records.raft import KRaftVersionRecord
from tests.broker.raft.raft_harness import ADDRESSES, LISTENER, directory, key, voter

STATIC = VoterSet.of_addresses({one: ADDRESSES[one] for one in (3, 1, 2)}, LISTENER)
THREE = VoterSet(map(voter, (1, 2, 3)))


def test_find_compares_the_directory_id_if_it_is_known() -> None:
    assert THREE.find(key(1)) == voter(1)
    assert THREE.find(key(1, 2)) is None
    assert STATIC.find(key(1, 2)) is not None
    assert STATIC.find(key(9)) is None


def test_voter_set_survives_a_round_trip_through_its_record() -> None:
    assert VoterSet.of_record(THREE.record()) == THREE
    assert THREE.address(2, LISTENER) == ADDRESSES[2]
    assert THREE.address(2, "OTHER") is None
    assert THREE.address(9, LISTENER) is None


def test_without_and_replaced_return_new_sets() -> None:
    assert THREE.without(2).ids == [1, 3]
    assert THREE.replaced(voter(4)).ids == [1, 2, 3, 4]
    moved = voter(2)._replace(key=key(2, 5))
    assert THREE.replaced(moved).find(key(2, 5)) == moved
    assert THREE.ids == [1, 2, 3]
    assert [VoterSet(map(voter, range(1, 1 + size))).majority for size in range(1, 8)] == [
        1,
        2,
        2,
        3,
        3,
        4,
        4,
    ]


def test_majorities_overlap_when_one_voter_changes() -> None:
    assert THREE.overlaps(THREE.without(1))
    assert THREE.overlaps(THREE.replaced(voter(4)))
    assert THREE.overlaps(THREE.replaced(voter(2)._replace(key=key(2, 5))))
    assert not THREE.overlaps(THREE.without(1).without(2))
    assert not THREE.overlaps(THREE.replaced(voter(4)).replaced(voter(5)))


def test_kraft_version_must_be_supported_by_all_voters() -> None:
    assert THREE.support(1)
    assert not STATIC.support(1)
    assert not THREE.replaced(Voter(ReplicaKey(4, directory(4)), ())).support(1)


def test_history_applies_records_at_once_and_truncation_reverts_them() -> None:
    history = VoterHistory(STATIC)
    assert (history.voters, history.voters_offset, history.kraft_version) == (STATIC, OF_CONFIGURATION, 0)
    assert history.voters_at(100) is None
    history.note(10, KRaftVersionRecord(version=0, k_raft_version=1))
    history.note(11, THREE.record())
    history.note(20, THREE.without(1).record())
    assert (history.voters.ids, history.voters_offset, history.kraft_version) == ([2, 3], 20, 1)
    assert history.former_voters == THREE
    assert history.voters_at(19) == THREE
    assert history.kraft_version_at(9) == 0
    history.truncate_to(20)
    assert (history.voters, history.former_voters) == (THREE, STATIC)
    history.truncate_to(10)
    assert (history.voters, history.kraft_version) == (STATIC, 0)


def test_history_before_a_snapshot_is_trimmed() -> None:
    history = VoterHistory(VoterSet())
    history.note(OF_CONFIGURATION, THREE.record())
    history.note(20, THREE.without(1).record())
    history.note(30, THREE.without(2).record())
    history.trim(25)
    assert history.voters_at(10) is None
    assert history.voters_at(25) == THREE.without(1)
    assert history.voters_offset == 30
    history.clear()
    assert len(history.voters) == 0
    assert ZERO_UUID not in [one.key.directory_id for one in THREE]
