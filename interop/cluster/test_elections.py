"""Repeated controller elections, repeated kills of leaders, and the loss of two of five voters.

Set INTEROP_ELECTIONS for the number of elections, INTEROP_MINUTES for the duration of the repeated kills, and
INTEROP_CLIENTS for the names of the clients.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from itertools import count

import pytest

from interop.brokers import CLUSTER_ID, Kwire
from interop.cluster.load import ALL_CLIENTS
from interop.cluster.log_checks import NOT_ENOUGH
from interop.cluster.nodes import (
    COMBINED,
    CONTROLLER,
    Cluster,
    Member,
    SmallKafka,
    wait_until,
)
from interop.cluster.quorums import create_topics_through_each_broker, under_load
from interop.raw import TOPIC_ALREADY_EXISTS
from interop.raw_client import RawClient
from interop.wire import Fields

ELECTIONS = int(os.environ.get("INTEROP_ELECTIONS", "100"))
KILLING_S = 60.0 * float(os.environ.get("INTEROP_MINUTES", "1"))
BESIDE = tuple(
    kind for kind in ALL_CLIENTS if kind.name in os.environ.get("INTEROP_CLIENTS", kind.name).split(",")
)
"""The clients that run during the kills. With fewer clients, there are more kills in the same time."""
QUORUMS = {
    "kwire": (Member(Kwire, COMBINED),) * 3,
    "two of kwire": (Member(Kwire, COMBINED), Member(SmallKafka, COMBINED), Member(Kwire, COMBINED)),
    "one of kwire": (Member(SmallKafka, COMBINED), Member(Kwire, COMBINED), Member(SmallKafka, COMBINED)),
    "kafka": (Member(SmallKafka, COMBINED),) * 3,
}
FIVE = {
    "kwire": (*(Member(Kwire, CONTROLLER),) * 2, *(Member(Kwire, COMBINED),) * 3),
    "three of kwire": (
        Member(Kwire, CONTROLLER),
        Member(SmallKafka, CONTROLLER),
        Member(Kwire, COMBINED),
        Member(SmallKafka, COMBINED),
        Member(Kwire, COMBINED),
    ),
    "two of kwire": (
        Member(SmallKafka, CONTROLLER),
        Member(Kwire, CONTROLLER),
        Member(SmallKafka, COMBINED),
        Member(Kwire, COMBINED),
        Member(SmallKafka, COMBINED),
    ),
}
SOON_ELECTED = {
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.election.timeout.ms": "300",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "250",
}
"""Short timeouts, for more rounds. With them, a starting JVM may take long to find a stable leader."""
KEPT = 5
"""The number of topics that exist at a time. The oldest topic is deleted first."""
UNKNOWN_TOPIC = 3
DELETED = (
    "Received UNKNOWN_TOPIC_OR_PARTITION from the leader"
    r"|JmxReporter - Error processing .*,topic=made-\d+\n.*InstanceNotFoundException"
)
"""Messages of Apache Kafka about a topic that its leader has already deleted, and about its metrics."""
ANOTHER_TRY_S = 0.3


class Operator(threading.Thread):
    """A thread that creates and deletes topics one by one, and retries each request until it succeeds."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._stopping = threading.Event()
        self.made = 0
        self.deleted = 0

    def run(self) -> None:
        for number in count():
            if self._stopping.is_set():
                return
            topic = {"Name": f"made-{number}", "NumPartitions": 1, "ReplicationFactor": 2}
            wanted = {"Topics": [topic], "timeoutMs": 10_000, "validateOnly": False}
            if not self._until_done("CreateTopics", 7, TOPIC_ALREADY_EXISTS, wanted):
                return
            self.made = number + 1
            if number >= KEPT:
                name = {"Name": f"made-{number - KEPT}", "TopicId": bytes(16)}
                wanted = {"Topics": [name], "TimeoutMs": 10_000}
                if not self._until_done("DeleteTopics", 6, UNKNOWN_TOPIC, wanted):
                    return
                self.deleted = number - KEPT + 1

    def _until_done(self, api: str, version: int, done_before: int, wanted: Fields) -> bool:
        """Send the request to the brokers in turn until it succeeds. Returns False if `stop` is called first.

        The error code `done_before` means that an earlier attempt has succeeded.
        """
        for number in count():
            queried_id = self._cluster.brokers[number % len(self._cluster.brokers)]
            with suppress(OSError, EOFError), RawClient(self._cluster.nodes[queried_id].bootstrap) as client:
                response = client.call(api, version, **wanted)
                # An earlier attempt may have succeeded without a response.
                expected = (0, done_before) if number else (0,)
                if (response.get("Topics") or response["Responses"])[0]["ErrorCode"] in expected:
                    return True
            if self._stopping.wait(0.05):
                return False
        raise AssertionError

    def stop(self) -> None:
        """Stop the thread, and check that every broker has all acknowledged changes."""
        self._stopping.set()
        self.join(60)
        for queried_id in self._cluster.brokers:

            def is_so(queried_id: int = queried_id) -> bool:
                found = self._cluster.metadata(queried_id=queried_id, everything=True)["Topics"]
                numbers = {int(each["Name"][5:]) for each in found if each["Name"].startswith("made-")}
                # One more creation or deletion may have succeeded without a response.
                return (
                    numbers >= set(range(self.deleted + 1, self.made))
                    and numbers <= set(range(self.deleted, self.made + 1))
                )  # fmt: skip

            wait_until(is_so, f"broker {queried_id} does not have the created topics")


def force_election(cluster: Cluster, last: int = 0) -> None:
    """Send EndQuorumEpoch in the leader's name to the other voters, and wait for another election.

    Each request names its receiver as the preferred candidate. The voter `last` gets its request after the
    other voters, which then no longer follow the leader and can vote for `last`.
    """
    found = quorum_of_the_leader(cluster)
    leader: int = found["LeaderId"]
    epoch: int = found["LeaderEpoch"]
    others = [each for each in found["CurrentVoters"] if each["ReplicaId"] != leader]
    others.sort(key=lambda each: bool(each["ReplicaId"] == last))
    due = 0.0

    def is_elected() -> bool:
        nonlocal due
        if time.monotonic() > due:
            # Each request names its receiver as preferred candidate: voters that still follow reject votes.
            for voter in others:
                send_end_quorum_epoch(cluster, voter["ReplicaId"], voter["ReplicaDirectoryId"], leader, epoch)
            due = time.monotonic() + ANOTHER_TRY_S
        return epoch < max(led_epochs(cluster), default=0)

    wait_until(is_elected, f"no voter is elected after {leader} in epoch {epoch}")


def quorum_of_the_leader(cluster: Cluster) -> Fields:
    """Return the DescribeQuorum response of the leader. Retry if the leader changes before it responds."""
    found: list[Fields] = []

    def is_found() -> bool:
        with suppress(LookupError, OSError, EOFError):
            found[:] = [cluster.quorum(cluster.active_controller())]
        return bool(found)

    wait_until(is_found, "no leader stays long enough for a request")
    return found[0]


def led_epochs(cluster: Cluster) -> list[int]:
    """Return the leader epoch of each controller that knows a leader."""
    found = []
    for queried_id in cluster.controllers:
        with suppress(LookupError, OSError, EOFError):
            found.append(cluster.quorum(queried_id)["LeaderEpoch"])
    return found


def send_end_quorum_epoch(
    cluster: Cluster, node_id: int, directory_id: bytes, leader: int, epoch: int
) -> None:
    host, _, port = cluster.nodes[leader].controller_bootstrap.rpartition(":")
    candidate = {"CandidateId": node_id, "CandidateDirectoryId": directory_id}
    part = {
        "PartitionIndex": 0,
        "LeaderId": leader,
        "LeaderEpoch": epoch,
        "PreferredCandidates": [candidate],
    }
    with RawClient(cluster.nodes[node_id].controller_bootstrap) as client:
        client.call(
            "EndQuorumEpoch",
            1,
            ClusterId=CLUSTER_ID,
            Topics=[{"TopicName": "__cluster_metadata", "Partitions": [part]}],
            LeaderEndpoints=[{"Name": "CONTROLLER", "Host": host, "Port": int(port)}],
        )


@pytest.mark.parametrize("quorum", QUORUMS)
def test_repeated_elections_lose_no_command(quorum: str) -> None:
    with Cluster(QUORUMS[quorum], voters_in_log=True).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster, also=DELETED) as load:
            load.wait_until_all_write()
            operator = Operator(cluster)
            operator.start()
            led: dict[int, int] = {}
            for _ in range(ELECTIONS):
                before = operator.made
                force_election(cluster)
                wait_until(lambda before=before: operator.made > before, "no topic is created or deleted")  # type: ignore[misc]
                active = cluster.active_controller()
                led[active] = led.get(active, 0) + 1
            operator.stop()
            print(f"{operator.made} topics were created, leaders by node: {led}")
            assert len(led) > 1
            create_topics_through_each_broker(cluster, "afterwards")


@pytest.mark.parametrize("quorum", ["kwire", "two of kwire"])
def test_repeated_leader_kills_lose_no_record(quorum: str) -> None:
    """Kill the active controller and the leader of the clients' partition in turn."""
    settings = SOON_ELECTED if quorum == "kwire" else {}
    with Cluster(QUORUMS[quorum], settings, voters_in_log=True).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster, clients=BESIDE) as load:
            deadline = time.monotonic() + KILLING_S
            for number in count():
                load.wait_until_all_write()
                if time.monotonic() > deadline:
                    break
                victim = cluster.leader("t") if number % 2 else cluster.active_controller()
                cluster.nodes[victim].kill()
                load.wait_until_all_write()
                cluster.start_node(victim)
                cluster.wait_until_all_in_sync()
            print(f"{number} were killed")


@pytest.mark.parametrize("quorum", FIVE)
def test_quorum_survives_two_of_five_lost_voters(quorum: str) -> None:
    """Lose the active controller and one other controller. At most one of the two is also a broker."""
    settings = {"controller.socket.timeout.ms": "5000"}
    with Cluster(FIVE[quorum], settings, voters_in_log=True).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        # A broker session is about as long as an election, so another broker may be fenced, too.
        with under_load(cluster, also=NOT_ENOUGH) as load:
            for how in ("kill", "pause", "kill"):
                load.wait_until_all_write()
                active = cluster.active_controller()
                while how == "pause" and active == cluster.leader("t"):
                    # A client waits for a paused leader as long as the leader is paused.
                    force_election(cluster)
                    active = cluster.active_controller()
                another = next(each for each in cluster.controllers if each != active)
                for lost in (active, another):
                    getattr(cluster.nodes[lost], how)()
                cluster.active_controller(than=active)
                load.wait_until_all_write()
                create_topics_through_each_broker(cluster, f"without-{active}-{another}-{how}")
                for lost in (active, another):
                    if cluster.nodes[lost].is_running:
                        continue
                    if how == "pause":
                        cluster.nodes[lost].resume()
                    else:
                        cluster.start_node(lost)
                create_topics_through_each_broker(cluster, f"with-{active}-{another}-{how}")
                cluster.wait_until_all_in_sync()
