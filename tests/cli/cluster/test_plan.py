"""The nodes of a cluster, computed from the options and the existing nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.cli.cluster.plan import ControllerAddresses, NodeCounts, NodePorts, Roles, assign_ports, properties
from kwire.cli.shared.command_error import CommandError

B: Roles = ("broker",)
C: Roles = ("controller",)
BC: Roles = ("broker", "controller")

SEPARATE = {100: C, 1: B, 2: B, 3: B}
COMBINED = {1: BC, 2: BC, 3: BC}


@pytest.mark.parametrize(
    ("requested", "known", "nodes"),
    [
        (NodeCounts(), {}, COMBINED),
        (NodeCounts(combined=1), {}, {1: BC}),
        (NodeCounts(brokers=2), {}, {100: C, 1: B, 2: B}),
        (NodeCounts(controllers=3), {}, {**SEPARATE, 101: C, 102: C}),
        (NodeCounts(brokers=1, controllers=2), {}, {100: C, 101: C, 1: B}),
        (NodeCounts(brokers=3, combined=1), {}, {1: BC, 2: B, 3: B}),
        (NodeCounts(), COMBINED, COMBINED),
        (NodeCounts(), SEPARATE, SEPARATE),
        (NodeCounts(brokers=4), COMBINED, {**COMBINED, 4: B}),
        (NodeCounts(brokers=4), SEPARATE, {**SEPARATE, 4: B}),
        (NodeCounts(controllers=2), SEPARATE, {**SEPARATE, 101: C}),
        (NodeCounts(combined=3), {1: BC}, COMBINED),
    ],
)
def test_node_counts_give_the_nodes_of_the_cluster(
    requested: NodeCounts, known: dict[int, Roles], nodes: dict[int, Roles]
) -> None:
    assert requested.nodes(known) == nodes


@pytest.mark.parametrize(
    ("requested", "known", "message"),
    [
        (NodeCounts(combined=3, controllers=3), {}, "option, --combined or --controllers"),
        (NodeCounts(combined=3), SEPARATE, "option, --combined or --controllers"),
        (NodeCounts(controllers=3), COMBINED, "option, --combined or --controllers"),
        (NodeCounts(brokers=2), COMBINED, "already has more than 2 brokers"),
        (NodeCounts(combined=2), COMBINED, "already has more than 2 combined nodes"),
        (NodeCounts(brokers=1, combined=3), {}, "--brokers 1: --combined 3 already makes more brokers"),
        (NodeCounts(combined=3), {1: BC, 2: B}, "node 2 already exists as a broker only"),
        (NodeCounts(controllers=1), {100: C, 101: C, 1: B}, "already has more than 1 controllers"),
        (NodeCounts(brokers=33), {}, "--brokers 33: expected 1 to 32"),
        (NodeCounts(controllers=0), {}, "--controllers 0: expected 1 to 7"),
    ],
)
def test_impossible_node_counts_are_refused(
    requested: NodeCounts, known: dict[int, Roles], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        requested.nodes(known)


def test_broker_ports_come_before_controller_ports() -> None:
    assert assign_ports({100: C, 1: B, 2: BC}, 9092) == {
        100: NodePorts(None, 9095),
        1: NodePorts(9092, None),
        2: NodePorts(9093, 9094),
    }


def test_added_controller_joins_the_quorum() -> None:
    quorum = ControllerAddresses(["127.0.0.1:9094", "127.0.0.1:9095"])
    lines = quorum.lines(C, joins=True)
    assert lines == {
        "controller.quorum.bootstrap.servers": "127.0.0.1:9094,127.0.0.1:9095",
        "controller.quorum.auto.join.enable": "true",
    }
    text = properties(101, C, NodePorts(None, 9095), lines, 3, Path("/data"), {"min.insync.replicas": "1"})
    assert "\nlisteners=CONTROLLER://127.0.0.1:9095\n" in text
    assert "\nmin.insync.replicas=1\n" in text
    assert quorum.lines(B, joins=True).keys() == {"controller.quorum.bootstrap.servers"}
