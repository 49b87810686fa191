"""AuthenticationFailures of other nodes: which are told, and how many are remembered."""

from __future__ import annotations

from kwire.broker.net.authentication_failures import LOG_INTERVAL_MS, MAX_NODES, AuthenticationFailures
from kwire.host.host import PeerAddress

A = PeerAddress("a", 1)


def test_a_refusal_is_told_once_until_its_node_lets_this_one_in() -> None:
    refusals = AuthenticationFailures()
    assert refusals.should_log(A, "who?", 0)
    assert not refusals.should_log(A, "who?", 10 * LOG_INTERVAL_MS)
    refusals.clear(A)
    assert refusals.should_log(A, "who?", 10 * LOG_INTERVAL_MS)


def test_one_whose_text_is_another_each_time_is_told_now_and_then() -> None:
    refusals = AuthenticationFailures()
    told = [second for second in range(120) if refusals.should_log(A, f"at {second}", second * 1_000)]
    assert told == [0, 60]
    assert refusals.should_log(PeerAddress("b", 1), "at 0", 0)


def test_as_many_are_remembered_as_nodes_are_asked() -> None:
    refusals = AuthenticationFailures()
    for port in range(MAX_NODES + 10):
        assert refusals.should_log(PeerAddress("a", port), "who?", 0)
    assert len(refusals) == MAX_NODES
    assert not refusals.should_log(PeerAddress("a", MAX_NODES), "who?", 0)
    assert refusals.should_log(PeerAddress("a", 0), "who?", 0), "it was forgotten"
