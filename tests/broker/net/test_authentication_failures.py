"""Authentication failures at other nodes: which are logged, and how many are remembered."""

from __future__ import annotations

from kwire.broker.net.authentication_failures import LOG_INTERVAL_MS, MAX_NODES, AuthenticationFailures
from kwire.host.host import InternodeTime, PeerAddress

START = InternodeTime(0)
A = PeerAddress("a", 1)


def test_failure_is_logged_once_until_an_authentication_succeeds() -> None:
    failures = AuthenticationFailures()
    assert failures.should_log(A, "who?", START)
    assert not failures.should_log(A, "who?", START + 10 * LOG_INTERVAL_MS)
    failures.clear(A)
    assert failures.should_log(A, "who?", START + 10 * LOG_INTERVAL_MS)


def test_changing_messages_are_logged_at_an_interval() -> None:
    failures = AuthenticationFailures()
    times = range(120)
    logged = [at for at in times if failures.should_log(A, f"at {at}", START + at * 1_000)]
    assert logged == [0, 60]
    assert failures.should_log(PeerAddress("b", 1), "at 0", START)


def test_number_of_remembered_nodes_is_limited() -> None:
    failures = AuthenticationFailures()
    for port in range(MAX_NODES + 10):
        assert failures.should_log(PeerAddress("a", port), "who?", START)
    assert len(failures) == MAX_NODES
    assert not failures.should_log(PeerAddress("a", MAX_NODES), "who?", START)
    assert failures.should_log(PeerAddress("a", 0), "who?", START), "the oldest node was forgotten"
