"""Write the data of `test_partition_parity.py`: `python -m tests.broker.controller.golden`, with Java.

The data is partitions in many states, and the change that Apache Kafka's controller makes to each:
brokers start and stop, leaders change the ISR, leaders are elected, and partitions are reassigned.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

CHANGES = Path(__file__).parent / "data" / "kafka-4.3.1-partition-changes.tsv"
BROKERS = (1, 2, 3, 4, 5)
CASES = 400
LEVELS = [(30, True), (30, True), (30, False), (23, True), (17, False), (11, False)]
"""Pairs of a metadata.version and whether eligible leader replicas (KIP-966) are enabled."""


def cases_as_json() -> list[str]:
    """Return cases: a partition, its candidate leaders and the requested change."""
    rng = random.Random(24)
    return [json.dumps(case(rng), separators=(",", ":")) for _ in range(CASES)]


def case(rng: random.Random) -> dict[str, Any]:
    level, elr_enabled = rng.choice(LEVELS)
    replicas = rng.sample(BROKERS, rng.randint(1, 4))
    isr = [replica for replica in replicas if rng.random() < 0.6]
    if not isr and not elr_enabled:
        isr = replicas[:1]
    rng.shuffle(isr)
    leader = rng.choice(isr) if isr and rng.random() < 0.8 else -1
    out = [replica for replica in replicas if replica not in isr]
    elr = sorted(replica for replica in out if elr_enabled and rng.random() < 0.5)
    last_known_elr = [rng.choice(replicas)] if elr_enabled and leader == -1 and rng.random() < 0.6 else []
    removing = [replica for replica in replicas if rng.random() < 0.1]
    adding = [replica for replica in replicas if replica not in removing and rng.random() < 0.1]
    live = [broker for broker in BROKERS if rng.random() < 0.7]
    return {
        "level": level,
        "elr_enabled": elr_enabled,
        "min_isr": rng.randint(1, len(replicas)),
        "replicas": replicas,
        "isr": isr,
        "leader": leader,
        "elr": elr,
        "last_known_elr": last_known_elr,
        "removing": removing,
        "adding": adding,
        "recovery": int(rng.random() < 0.2),
        "live": live,
        "election": rng.choice(("ONLINE", "ONLINE", "PREFERRED", "UNCLEAN")),
        "target": target(rng, replicas, isr, adding, live),
    }


def target(
    rng: random.Random, replicas: list[int], isr: list[int], adding: list[int], live: list[int]
) -> dict[str, Any]:
    kind = rng.choice(("elect", "depart", "unclean", "alter", "move", "cancel"))
    if kind == "elect":
        return {}
    if kind in ("depart", "unclean"):
        gone = rng.choice(replicas)
        if gone in live:
            live.remove(gone)
        left = [replica for replica in isr if replica != gone]
        return {"isr": left, "unclean": [gone]} if kind == "unclean" else {"isr": left}
    if kind == "alter":
        new_replicas = [replica for replica in replicas if rng.random() < 0.7] or replicas[:1]
        rng.shuffle(new_replicas)
        return {"isr": new_replicas, "recovery": int(rng.random() < 0.1)}
    kept = [replica for replica in replicas if replica not in adding]
    if kind == "cancel" and kept:
        isr = [replica for replica in isr if replica not in adding]
        return {"isr": isr or kept[:1], "replicas": kept, "removing": [], "adding": []}
    new_replicas = rng.sample(BROKERS, rng.randint(1, 4))
    change: dict[str, Any] = {}
    removed = sorted(set(replicas) - set(new_replicas))
    added = sorted(set(new_replicas) - set(replicas))
    change["replicas"] = [*new_replicas, *removed]
    if removed:
        change["removing"] = removed
    if added:
        change["adding"] = added
    return change


def write() -> None:
    """Ask Java."""
    from interop.java_outputs import java_outputs

    cases = cases_as_json()
    answers = java_outputs("PartitionChanges", cases)
    CHANGES.parent.mkdir(exist_ok=True)
    CHANGES.write_text(
        "".join(f"{case}\t{answer}\n" for case, answer in zip(cases, answers, strict=True)),
        encoding="ascii",
    )


if __name__ == "__main__":
    write()
