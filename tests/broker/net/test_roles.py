"""A controller and a broker as servers of their own, which reach each other over loopback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from kwire.broker.config import BrokerConfig, load
from kwire.broker.net.loop_events import LoopEvent
from kwire.broker.net.serve import serve
from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.broker.node.format import InitialMetadata, format_directories, standalone_voter
from kwire.broker.node.node import Node
from kwire.broker.storage.dirs.meta_properties import StartRefused
from kwire.broker.storage.disk import RealDisk

SERVED = {"share.version": 0, "streams.version": 0}


def config_of(home: Path, servers: str, **settings: str) -> BrokerConfig:
    """Of a node of the cluster that is found at `servers`, its directory formatted."""
    config = load(
        None,
        {},
        {
            "log.dirs": str(home / settings["process_roles"]),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": servers,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            **{name.replace("_", "."): value for name, value in settings.items()},
        },
    )
    rng = random.Random(config.node_id)
    voters = [standalone_voter(config, rng)] if config.is_controller else []
    beginning = InitialMetadata(SERVED, voters=voters)
    format_directories(
        config, RealDisk(), rng, 0, cluster_id="AAAAAAAAAAAAAAAAAAAAAQ", initial_metadata=beginning
    )
    return config


def broker_of(home: Path, servers: str) -> BrokerConfig:
    return config_of(home, servers, process_roles="broker", node_id="2", listeners="PLAINTEXT://127.0.0.1:0")


def test_a_broker_comes_and_goes(tmp_path: Path) -> None:
    async def both() -> None:
        nobody = "127.0.0.1:1"  # a controller that votes alone looks for nobody
        controller = config_of(
            tmp_path, nobody, process_roles="controller", node_id="1", listeners="CONTROLLER://127.0.0.1:0"
        )
        async with serve(controller) as first:
            assert first.bootstrap.startswith("127.0.0.1:")
            async with serve(broker_of(tmp_path, first.bootstrap)) as second:
                assert second.node.lifecycle.stage is LifecycleStage.UNFENCED
                assert isinstance(second.node, Node)
                assert second.node.is_open
                assert second.bootstrap.startswith("127.0.0.1:")
                known = first.node.image.brokers[2]
                assert not known.fenced
                assert known.endpoints["PLAINTEXT"].port == int(second.bootstrap.rpartition(":")[2])
            assert second.node.lifecycle.stage is LifecycleStage.STOPPED
            assert first.node.image.brokers[2].fenced

    trio.run(both)


def test_a_broker_that_waits_for_its_cluster_can_be_stopped(tmp_path: Path) -> None:
    async def alone() -> None:
        stop = LoopEvent()
        stop.set()
        async with serve(broker_of(tmp_path, "127.0.0.1:1"), stop=stop) as node:
            assert node.bootstrap == ""
            assert node.node.lifecycle.stage is LifecycleStage.STARTING

    trio.run(alone)


def test_a_broker_gives_up_that_nobody_registers(tmp_path: Path) -> None:
    async def alone() -> None:
        config = broker_of(tmp_path, "127.0.0.1:1")
        config = load(None, {}, {**config.static_settings, "initial.broker.registration.timeout.ms": "1"})
        async with serve(config) as node:
            assert "initial.broker.registration.timeout.ms" in node.failure.reason

    trio.run(alone)


@pytest.mark.parametrize("roles", ["broker", "controller"])
def test_directories_are_not_formatted_for_a_cluster_of_others(tmp_path: Path, roles: str) -> None:
    async def alone() -> None:
        settings = {
            "process.roles": roles,
            "node.id": "2",
            "log.dirs": str(tmp_path),
            "listeners": "C://127.0.0.1:0" if roles == "controller" else "PLAINTEXT://127.0.0.1:0",
            "controller.listener.names": "C",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,C:PLAINTEXT",
            "controller.quorum.bootstrap.servers": "127.0.0.1:1",
        }
        async with serve(load(None, {}, settings)):
            pytest.fail("it has started")

    with pytest.raises(StartRefused, match="format the directories with kwire format"):
        trio.run(alone)
