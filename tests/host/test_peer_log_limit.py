"""The interval between log lines about the same peer, and the memory that it takes."""

from __future__ import annotations

from kwire.broker.net.unexpected_protocols import UnexpectedProtocol
from kwire.host.peer_log_limit import MAX_PEERS, PeerLogLimit


def test_each_peer_is_logged_once_per_minute() -> None:
    log = PeerLogLimit()
    logged = [
        second for second in range(130) if log.should_log("a", "PLAINTEXT", "handshake", second * 1_000)
    ]
    assert logged == [0, 60, 120]
    assert log.should_log("b", "PLAINTEXT", "handshake", 130_000)
    assert log.should_log("a", "SASL_PLAINTEXT", "handshake", 130_000)
    assert log.should_log("a", "PLAINTEXT", UnexpectedProtocol.HTTP, 130_000)


def test_number_of_kept_times_is_limited() -> None:
    log = PeerLogLimit()
    for number in range(MAX_PEERS + 10):
        assert log.should_log(f"peer {number}", "PLAINTEXT", "handshake", number)
    assert len(log) == MAX_PEERS
    assert not log.should_log(f"peer {MAX_PEERS}", "PLAINTEXT", "handshake", MAX_PEERS + 10)
    assert log.should_log("peer 0", "PLAINTEXT", "handshake", MAX_PEERS + 10), "the oldest peer was forgotten"
