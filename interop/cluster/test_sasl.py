"""Clusters whose nodes have to log in to each other, as their clients have: brokers and controllers.

Nothing else changes by it: topics are replicated, leaders move, nodes restart. Who has a wrong password does
not join, and says why.
"""

from __future__ import annotations

import re
import time

import pytest
from confluent_kafka import Producer

from interop.brokers import ApacheKafka, Broker, Kwire, free_port
from interop.cluster.images import image_at
from interop.cluster.load import CLIENTS, ConfluentReader, ConfluentWriter
from interop.cluster.logins import BROKERS_LISTENER, PLAIN, REFUSED, SCRAM, Login, logins
from interop.cluster.nodes import (
    COMBINED,
    CONTROLLER,
    MAKEUPS,
    Cluster,
    Member,
    SmallKafka,
    eventually,
)
from interop.cluster.quorums import (
    OF_THREE,
    at_work,
    goes_on,
    metadata_home,
    until_all_have_the_metadata,
    voters,
)
from interop.tools import a_file, run

TWO_BROKERS = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "min.insync.replicas": "1",
}
STRANGERS: dict[str, tuple[type[Broker], type[Broker]]] = {
    "kwire to kwire": (Kwire, Kwire),
    "kwire to kafka": (SmallKafka, Kwire),
    "kafka to kwire": (Kwire, SmallKafka),
    "kafka to kafka": (SmallKafka, SmallKafka),
}
NOT_THE_PASSWORD = f"due to invalid credentials with SASL mechanism {SCRAM}"
"""Of a first login, or of one more over a connection: kwire tells the one that comes first."""
TOO_EARLY = (
    rf"failed authentication due to: .*{NOT_THE_PASSWORD}"
    "|(request|failed) due to authentication error|of an authentication exception"
    "|NETWORK_EXCEPTION in FETCH response"
)
"""A controller of Apache Kafka's that starts takes connections before it has loaded anybody's credentials.

In its log: "Awaiting socket connections", and then "initializing ScramPublisher".
"""


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM])
@pytest.mark.parametrize("makeup", MAKEUPS)
def test_leaders_move_and_nodes_restart(makeup: str, mechanism: str) -> None:
    """One controller, which may be a broker, too: what is in the metadata, it knows from the start."""
    with Cluster(MAKEUPS[makeup], logins=logins(mechanism, mechanism)).start() as cluster:
        [controller] = cluster.controllers
        others = [each for each in cluster.brokers if each != controller]
        cluster.make_topic("t", [[*others, controller]])
        is_early = mechanism == SCRAM and isinstance(cluster.nodes[controller], ApacheKafka)
        with at_work(cluster, clients=CLIENTS, also=TOO_EARLY if is_early else "(?!)") as load:
            load.until_all_write()
            for victim in (cluster.leader("t"), controller):
                cluster.nodes[victim].kill()
                if victim != controller:
                    cluster.until_led_by_another("t", 0, than=victim)
                    load.until_all_write()
                cluster.start_again(victim)
                cluster.until_all_in_sync()
                load.until_all_write()
                goes_on(cluster, f"after-{victim}")


@pytest.mark.parametrize("roles", [COMBINED, CONTROLLER])
@pytest.mark.parametrize("makeup", OF_THREE)
def test_controllers_are_elected(makeup: str, roles: str) -> None:
    """Of three, combined or apart. They vote before any metadata is there, so they log in by PLAIN."""
    members = [Member(kind, roles) for kind in OF_THREE[makeup]]
    if roles == CONTROLLER:
        members += [Member(kind) for kind in OF_THREE[makeup][:2]]
    settings = {} if roles == COMBINED else TWO_BROKERS
    with Cluster(tuple(members), settings, logins=logins(SCRAM, PLAIN)).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        with at_work(cluster, clients=CLIENTS) as load:
            load.until_all_write()
            for _ in range(2):
                active = cluster.active_controller()
                cluster.nodes[active].kill()
                cluster.active_controller(than=active)
                load.until_all_write()
                cluster.start_again(active)
                cluster.until_all_in_sync()
                goes_on(cluster, f"after-{active}")


@pytest.mark.parametrize("makeup", OF_THREE)
def test_voters_join_by_themselves(makeup: str) -> None:
    """Where the metadata tells who votes, and of each node by which protocol it is reached: 2 is this one."""
    members = tuple(Member(kind, COMBINED) for kind in OF_THREE[makeup])
    settings = {"controller.quorum.auto.join.enable": "true"}
    with Cluster(
        members, settings, logins=logins(SCRAM, PLAIN), voters_in_log=True, first_voters=[1]
    ).start() as cluster:
        eventually(lambda: voters(cluster) == [1, 2, 3], "not everybody has become a voter")
        cluster.make_topic("t", [[2, 3, 1]])
        committed = until_all_have_the_metadata(cluster, cluster.active_controller())
        told = [
            re.findall(r"Endpoint\(name='(\w+)', host='127.0.0.1', port=\d+, security_protocol=(\d+)\)", line)
            for line in image_at(metadata_home(cluster, 1), committed - 1)
            if line.startswith(("RegisterBroker", "RegisterController"))
        ]
        assert told == [[(BROKERS_LISTENER, "2")]] * 3 + [[("CONTROLLER", "2")]] * 3
        cluster.check_complaints()


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_a_cluster_begins_to_log_in(makeup: str) -> None:
    """Node by node, with clients at work: first all listen for it, and then all do it."""
    known = logins(PLAIN, PLAIN)
    settings = known.properties()
    switches = {"inter.broker.listener.name": settings.pop("inter.broker.listener.name")}
    with Cluster(MAKEUPS[makeup]).start() as cluster:
        listens = {
            node_id: f",{BROKERS_LISTENER}://{node.host}:{free_port()}"
            for node_id, node in cluster.nodes.items()
        }
        cluster.make_topic("t", [cluster.brokers])
        with at_work(cluster, clients=CLIENTS) as load:
            for is_switch in (False, True):
                for node_id, node in cluster.nodes.items():
                    load.until_all_write()
                    node.stop()
                    if is_switch:
                        node.properties |= switches
                    else:
                        protocols = (
                            f"PLAINTEXT:PLAINTEXT,{BROKERS_LISTENER}:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
                        )
                        node.properties |= {**settings, "listener.security.protocol.map": protocols}
                        node.properties["listeners"] += listens[node_id]
                        node.properties["advertised.listeners"] += listens[node_id]
                    cluster.start_again(node_id)
                    cluster.until_all_in_sync()
                    cluster.elect_preferred()


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_the_password_between_brokers_changes(makeup: str) -> None:
    """Who logs in with the old one is refused from then on, as soon as the login of before ends."""
    settings = {"connections.max.reauth.ms": "2000", "replica.lag.time.max.ms": "3000"}
    known = logins(SCRAM, PLAIN)
    client = known.client
    with Cluster(MAKEUPS[makeup], settings, logins=known).start() as cluster:
        cluster.make_topic("t", [[1, 2, 3]])
        with a_file("".join(f"{key}={value}\n" for key, value in client.of_java().items())) as config:
            alter = ("--alter", "--entity-type", "users", "--entity-name", "broker")
            told = run(
                "kafka.admin.ConfigCommand",
                *("--bootstrap-server", cluster.bootstrap, "--command-config", config, *alter),
                *("--add-config", f"{SCRAM}=[password=another]"),
            )
        assert told.status == 0, told
        for follower in (2, 3):
            eventually(
                lambda node=cluster.nodes[follower]: NOT_THE_PASSWORD in node.log_text(),  # type: ignore[misc]
                "a login with the old password goes on",
            )
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1, **client.of_librdkafka()})
        producer.produce("t", b"nobody follows")
        assert producer.flush(10) == 0
        eventually(lambda: cluster.partition("t")["IsrNodes"] == [1], "who is refused follows all the same")
        changed = Login("broker", "another", SCRAM).jaas()
        for node_id, node in cluster.nodes.items():
            node.kill()
            node.properties["listener.name.brokers.scram-sha-256.sasl.jaas.config"] = changed
            cluster.start_again(node_id)
        cluster.until_all_in_sync()


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_logins_end_again_and_again(makeup: str) -> None:
    """Nodes log in anew before that: no connection is lost by it, and nobody falls behind (KIP-368)."""
    settings = {"connections.max.reauth.ms": "1500", "replica.lag.time.max.ms": "3000"}
    with Cluster(MAKEUPS[makeup], settings, logins=logins(SCRAM, PLAIN)).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        epoch = cluster.partition("t")["LeaderEpoch"]
        with at_work(cluster, clients=[ConfluentWriter, ConfluentReader]) as load:
            ends = time.monotonic() + 15
            while time.monotonic() < ends:
                load.until_all_write()
                found = cluster.partition("t")
                assert sorted(found["IsrNodes"]) == cluster.brokers
                assert found["LeaderEpoch"] == epoch


@pytest.mark.parametrize("makeup", STRANGERS)
def test_a_stranger_does_not_join(makeup: str) -> None:
    """With a wrong password for controllers it is no broker; with the right one it becomes one."""
    known, stranger = STRANGERS[makeup]
    members = (Member(known, COMBINED), Member(known), Member(stranger))
    with Cluster(members, logins=logins(PLAIN, PLAIN)).start(without=[3]) as cluster:
        node = cluster.nodes[3]
        right = dict(node.properties)
        node.properties["listener.name.controller.plain.sasl.jaas.config"] = Login("quorum", "guess").jaas()
        node.start(wait=False)
        eventually(
            lambda: REFUSED[PLAIN] in node.log_text(), "the stranger does not say why it does not join"
        )
        time.sleep(3)
        assert {each["NodeId"] for each in cluster.metadata(asked=1)["Brokers"]} == {1, 2}
        if stranger is Kwire:
            [said] = [line for line in node.log_text().splitlines() if REFUSED[PLAIN] in line]
            assert " ERROR " in said, "said once"
        node.kill()
        node.properties = right
        cluster.start_again(3)
        cluster.make_topic("t", [cluster.brokers])


@pytest.mark.parametrize("makeup", STRANGERS)
def test_a_stranger_among_brokers_follows_nobody(makeup: str) -> None:
    """It is a broker, as the controller knows its password, but gets no records of others."""
    known, stranger = STRANGERS[makeup]
    members = (Member(known, COMBINED), Member(known), Member(stranger))
    with Cluster(members, TWO_BROKERS, logins=logins(SCRAM, PLAIN)).start(without=[3]) as cluster:
        node = cluster.nodes[3]
        right = dict(node.properties)
        wrong = Login("broker", "guess", SCRAM).jaas()
        node.properties["listener.name.brokers.scram-sha-256.sasl.jaas.config"] = wrong
        cluster.make_topic("t", [[1, 2]])
        cluster.start_again(3)
        with cluster.connect(cluster.nodes[1].bootstrap) as client:
            topics = [
                {"Name": "t", "Partitions": [{"PartitionIndex": 0, "Replicas": [1, 2, 3]}]},
            ]
            told = client.call("AlterPartitionReassignments", 0, TimeoutMs=10_000, Topics=topics)
        assert told["ErrorCode"] == 0, told
        eventually(lambda: REFUSED[SCRAM] in node.log_text(), "the stranger does not say why it has nothing")
        time.sleep(2)
        assert set(cluster.partition("t")["IsrNodes"]) == {1, 2}
        node.kill()
        node.properties = right
        cluster.start_again(3)
        cluster.until_in_sync("t")
