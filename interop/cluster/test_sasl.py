"""Clusters whose brokers and controllers authenticate to each other with SASL.

Replication, failover and restarts must work as they do without SASL. A node with a wrong password must not
join the cluster, and must log the reason.
"""

from __future__ import annotations

import re
import time

import pytest
from confluent_kafka import Producer

from interop.brokers import ApacheKafka, Broker, Kwire, free_port
from interop.cluster.load import CLIENTS, ConfluentReader, ConfluentWriter
from interop.cluster.logins import BROKERS_LISTENER, PLAIN, REFUSED, SCRAM, Login, logins
from interop.cluster.metadata_images import image_at
from interop.cluster.nodes import (
    CLUSTER_KINDS,
    COMBINED,
    CONTROLLER,
    Cluster,
    Member,
    SmallKafka,
    wait_until,
)
from interop.cluster.quorums import (
    VOTER_KINDS,
    create_topics_through_each_broker,
    metadata_home,
    under_load,
    voters,
    wait_until_metadata_replicated,
)
from interop.tools import a_file, run

TWO_BROKERS = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "min.insync.replicas": "1",
}
UNAUTHENTICATED: dict[str, tuple[type[Broker], type[Broker]]] = {
    "kwire to kwire": (Kwire, Kwire),
    "kwire to kafka": (SmallKafka, Kwire),
    "kafka to kwire": (Kwire, SmallKafka),
    "kafka to kafka": (SmallKafka, SmallKafka),
}
INVALID_CREDENTIALS = f"due to invalid credentials with SASL mechanism {SCRAM}"
"""The common part of the messages about failed authentication and failed reauthentication.

kwire logs the failure that happens first.
"""
CREDENTIALS_NOT_LOADED = (
    rf"failed authentication due to: .*{INVALID_CREDENTIALS}"
    "|(request|failed) due to authentication error|of an authentication exception"
    "|NETWORK_EXCEPTION in FETCH response"
)
"""Errors while Apache Kafka's controller accepts connections but has not loaded SCRAM credentials yet.

The controller logs "Awaiting socket connections" before "initializing ScramPublisher".
"""


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM])
@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_failover_and_restart_with_sasl(cluster_kind: str, mechanism: str) -> None:
    """Check that a sole controller, after its restart, authenticates the users in its metadata at once."""
    with Cluster(CLUSTER_KINDS[cluster_kind], logins=logins(mechanism, mechanism)).start() as cluster:
        [controller] = cluster.controllers
        others = [each for each in cluster.brokers if each != controller]
        cluster.make_topic("t", [[*others, controller]])
        is_early = mechanism == SCRAM and isinstance(cluster.nodes[controller], ApacheKafka)
        with under_load(
            cluster, clients=CLIENTS, also=CREDENTIALS_NOT_LOADED if is_early else "(?!)"
        ) as load:
            load.wait_until_all_write()
            for victim in (cluster.leader("t"), controller):
                cluster.nodes[victim].kill()
                if victim != controller:
                    cluster.wait_for_another_leader("t", 0, than=victim)
                    load.wait_until_all_write()
                cluster.start_node(victim)
                cluster.wait_until_all_in_sync()
                load.wait_until_all_write()
                create_topics_through_each_broker(cluster, f"after-{victim}")


@pytest.mark.parametrize("roles", [COMBINED, CONTROLLER])
@pytest.mark.parametrize("cluster_kind", VOTER_KINDS)
def test_controller_election_with_sasl(cluster_kind: str, roles: str) -> None:
    """Elect controllers. They use PLAIN, because they vote before they have loaded any SCRAM users."""
    members = [Member(kind, roles) for kind in VOTER_KINDS[cluster_kind]]
    if roles == CONTROLLER:
        members += [Member(kind) for kind in VOTER_KINDS[cluster_kind][:2]]
    settings = {} if roles == COMBINED else TWO_BROKERS
    with Cluster(tuple(members), settings, logins=logins(SCRAM, PLAIN)).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster, clients=CLIENTS) as load:
            load.wait_until_all_write()
            for _ in range(2):
                active = cluster.active_controller()
                cluster.nodes[active].kill()
                cluster.active_controller(than=active)
                load.wait_until_all_write()
                cluster.start_node(active)
                cluster.wait_until_all_in_sync()
                create_topics_through_each_broker(cluster, f"after-{active}")


@pytest.mark.parametrize("cluster_kind", VOTER_KINDS)
def test_voters_join_automatically_with_sasl(cluster_kind: str) -> None:
    """Let voters join, and check that all endpoints in the metadata have the protocol SASL_PLAINTEXT (2)."""
    members = tuple(Member(kind, COMBINED) for kind in VOTER_KINDS[cluster_kind])
    settings = {"controller.quorum.auto.join.enable": "true"}
    with Cluster(
        members, settings, logins=logins(SCRAM, PLAIN), voters_in_log=True, first_voters=[1]
    ).start() as cluster:
        wait_until(lambda: voters(cluster) == [1, 2, 3], "not everybody has become a voter")
        cluster.make_topic("t", [[2, 3, 1]])
        committed = wait_until_metadata_replicated(cluster, cluster.active_controller())
        endpoints = [
            re.findall(r"Endpoint\(name='(\w+)', host='127.0.0.1', port=\d+, security_protocol=(\d+)\)", line)
            for line in image_at(metadata_home(cluster, 1), committed - 1)
            if line.startswith(("RegisterBroker", "RegisterController"))
        ]
        assert endpoints == [[(BROKERS_LISTENER, "2")]] * 3 + [[("CONTROLLER", "2")]] * 3
        cluster.check_logs()


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_sasl_is_enabled_by_a_rolling_restart(cluster_kind: str) -> None:
    """Enable SASL with two rolling restarts: first all nodes get a SASL listener, then all nodes use it."""
    known = logins(PLAIN, PLAIN)
    settings = known.properties()
    switches = {"inter.broker.listener.name": settings.pop("inter.broker.listener.name")}
    with Cluster(CLUSTER_KINDS[cluster_kind]).start() as cluster:
        listens = {
            node_id: f",{BROKERS_LISTENER}://{node.host}:{free_port()}"
            for node_id, node in cluster.nodes.items()
        }
        cluster.make_topic("t", [cluster.brokers])
        with under_load(cluster, clients=CLIENTS) as load:
            for is_switch in (False, True):
                for node_id, node in cluster.nodes.items():
                    load.wait_until_all_write()
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
                    cluster.start_node(node_id)
                    cluster.wait_until_all_in_sync()
                    cluster.elect_preferred_leaders()


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_replication_stops_with_an_old_password(cluster_kind: str) -> None:
    """Change a broker's password, and check that the old password is rejected when the session expires."""
    settings = {"connections.max.reauth.ms": "2000", "replica.lag.time.max.ms": "3000"}
    known = logins(SCRAM, PLAIN)
    client = known.client
    with Cluster(CLUSTER_KINDS[cluster_kind], settings, logins=known).start() as cluster:
        cluster.make_topic("t", [[1, 2, 3]])
        with a_file("".join(f"{key}={value}\n" for key, value in client.of_java().items())) as config:
            alter = ("--alter", "--entity-type", "users", "--entity-name", "broker")
            response = run(
                "kafka.admin.ConfigCommand",
                *("--bootstrap-server", cluster.bootstrap, "--command-config", config, *alter),
                *("--add-config", f"{SCRAM}=[password=another]"),
            )
        assert response.status == 0, response
        for follower in (2, 3):
            wait_until(
                lambda node=cluster.nodes[follower]: INVALID_CREDENTIALS in node.log_text(),  # type: ignore[misc]
                "a login with the old password goes on",
            )
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1, **client.of_librdkafka()})
        producer.produce("t", b"nobody follows")
        assert producer.flush(10) == 0
        wait_until(lambda: cluster.partition("t")["IsrNodes"] == [1], "a rejected follower stays in the ISR")
        changed = Login("broker", "another", SCRAM).jaas()
        for node_id, node in cluster.nodes.items():
            node.kill()
            node.properties["listener.name.brokers.scram-sha-256.sasl.jaas.config"] = changed
            cluster.start_node(node_id)
        cluster.wait_until_all_in_sync()


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_reauthentication_keeps_followers_in_sync(cluster_kind: str) -> None:
    """Check that reauthentication closes no connection and that no follower falls behind (KIP-368)."""
    settings = {"connections.max.reauth.ms": "1500", "replica.lag.time.max.ms": "3000"}
    with Cluster(CLUSTER_KINDS[cluster_kind], settings, logins=logins(SCRAM, PLAIN)).start() as cluster:
        cluster.make_topic("t", [cluster.brokers])
        epoch = cluster.partition("t")["LeaderEpoch"]
        with under_load(cluster, clients=[ConfluentWriter, ConfluentReader]) as load:
            ends = time.monotonic() + 15
            while time.monotonic() < ends:
                load.wait_until_all_write()
                found = cluster.partition("t")
                assert sorted(found["IsrNodes"]) == cluster.brokers
                assert found["LeaderEpoch"] == epoch


@pytest.mark.parametrize("cluster_kind", UNAUTHENTICATED)
def test_broker_with_a_wrong_controller_password_does_not_register(cluster_kind: str) -> None:
    """Start a broker with a wrong controller password. It registers only after the password was corrected."""
    known, joining = UNAUTHENTICATED[cluster_kind]
    members = (Member(known, COMBINED), Member(known), Member(joining))
    with Cluster(members, logins=logins(PLAIN, PLAIN)).start(without=[3]) as cluster:
        node = cluster.nodes[3]
        right = dict(node.properties)
        node.properties["listener.name.controller.plain.sasl.jaas.config"] = Login("quorum", "guess").jaas()
        node.start(wait=False)
        wait_until(lambda: REFUSED[PLAIN] in node.log_text(), "the joining does not say why it does not join")
        time.sleep(3)
        assert {each["NodeId"] for each in cluster.metadata(queried_id=1)["Brokers"]} == {1, 2}
        if joining is Kwire:
            [said] = [line for line in node.log_text().splitlines() if REFUSED[PLAIN] in line]
            assert " ERROR " in said, "said once"
        node.kill()
        node.properties = right
        cluster.start_node(3)
        cluster.make_topic("t", [cluster.brokers])


@pytest.mark.parametrize("cluster_kind", UNAUTHENTICATED)
def test_broker_with_a_wrong_replication_password_stays_out_of_the_isr(cluster_kind: str) -> None:
    """Start a broker with a wrong replication password. It registers, but cannot fetch from other brokers."""
    known, joining = UNAUTHENTICATED[cluster_kind]
    members = (Member(known, COMBINED), Member(known), Member(joining))
    with Cluster(members, TWO_BROKERS, logins=logins(SCRAM, PLAIN)).start(without=[3]) as cluster:
        node = cluster.nodes[3]
        right = dict(node.properties)
        wrong = Login("broker", "guess", SCRAM).jaas()
        node.properties["listener.name.brokers.scram-sha-256.sasl.jaas.config"] = wrong
        cluster.make_topic("t", [[1, 2]])
        cluster.start_node(3)
        with cluster.connect(cluster.nodes[1].bootstrap) as client:
            topics = [
                {"Name": "t", "Partitions": [{"PartitionIndex": 0, "Replicas": [1, 2, 3]}]},
            ]
            response = client.call("AlterPartitionReassignments", 0, TimeoutMs=10_000, Topics=topics)
        assert response["ErrorCode"] == 0, response
        wait_until(lambda: REFUSED[SCRAM] in node.log_text(), "the joining does not say why it has nothing")
        time.sleep(2)
        assert set(cluster.partition("t")["IsrNodes"]) == {1, 2}
        node.kill()
        node.properties = right
        cluster.start_node(3)
        cluster.wait_until_in_sync("t")
