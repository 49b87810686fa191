"""A controller and a broker as separate servers, connected over loopback."""

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


def node_config(home: Path, servers: str, **settings: str) -> BrokerConfig:
    """Load the configuration of a node and format its directory."""
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


def broker_config(home: Path, servers: str) -> BrokerConfig:
    return node_config(
        home, servers, process_roles="broker", node_id="2", listeners="PLAINTEXT://127.0.0.1:0"
    )


def test_broker_registers_and_shuts_down(tmp_path: Path) -> None:
    async def run() -> None:
        nobody = "127.0.0.1:1"  # the only voter contacts no other controller
        controller = node_config(
            tmp_path, nobody, process_roles="controller", node_id="1", listeners="CONTROLLER://127.0.0.1:0"
        )
        async with serve(controller) as first:
            assert first.bootstrap.startswith("127.0.0.1:")
            async with serve(broker_config(tmp_path, first.bootstrap)) as second:
                assert second.node.lifecycle.stage is LifecycleStage.UNFENCED
                assert isinstance(second.node, Node)
                assert second.node.is_open
                assert second.bootstrap.startswith("127.0.0.1:")
                known = first.node.image.brokers[2]
                assert not known.fenced
                assert known.endpoints["PLAINTEXT"].port == int(second.bootstrap.rpartition(":")[2])
            stopped: LifecycleStage = second.node.lifecycle.stage
            assert stopped is LifecycleStage.STOPPED
            assert first.node.image.brokers[2].fenced

    trio.run(run)


def test_broker_waiting_for_its_registration_can_be_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        stop = LoopEvent()
        stop.set()
        async with serve(broker_config(tmp_path, "127.0.0.1:1"), stop=stop) as node:
            assert node.bootstrap == ""
            assert node.node.lifecycle.stage is LifecycleStage.STARTING

    trio.run(run)


def test_start_fails_after_the_registration_timeout(tmp_path: Path) -> None:
    async def run() -> None:
        config = broker_config(tmp_path, "127.0.0.1:1")
        config = load(None, {}, {**config.static_settings, "initial.broker.registration.timeout.ms": "1"})
        async with serve(config) as node:
            assert "initial.broker.registration.timeout.ms" in node.failure.reason

    trio.run(run)


@pytest.mark.parametrize("roles", ["broker", "controller"])
def test_unformatted_directories_fail_the_start(tmp_path: Path, roles: str) -> None:
    async def run() -> None:
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
        trio.run(run)
