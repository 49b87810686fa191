"""Writes what `test_partition_parity.py` reads: `python -m tests.broker.controller.golden`, with Java.

Partitions in all kinds of states, and what Apache Kafka's controller makes of them: as brokers go and come,
sets are altered, leaders are asked for and replicas move.
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
"""Of metadata.version, and whether there are eligible leaders (KIP-966)."""


def questions() -> list[str]:
    """A partition, who may lead, and what it is to become."""
    rng = random.Random(24)
    return [json.dumps(question(rng), separators=(",", ":")) for _ in range(CASES)]


def question(rng: random.Random) -> dict[str, Any]:
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
    what = rng.choice(("elect", "depart", "unclean", "alter", "move", "cancel"))
    if what == "elect":
        return {}
    if what in ("depart", "unclean"):
        gone = rng.choice(replicas)
        if gone in live:
            live.remove(gone)
        left = [replica for replica in isr if replica != gone]
        return {"isr": left, "unclean": [gone]} if what == "unclean" else {"isr": left}
    if what == "alter":
        wanted = [replica for replica in replicas if rng.random() < 0.7] or replicas[:1]
        rng.shuffle(wanted)
        return {"isr": wanted, "recovery": int(rng.random() < 0.1)}
    kept = [replica for replica in replicas if replica not in adding]
    if what == "cancel" and kept:
        isr = [replica for replica in isr if replica not in adding]
        return {"isr": isr or kept[:1], "replicas": kept, "removing": [], "adding": []}
    wanted = rng.sample(BROKERS, rng.randint(1, 4))
    moved: dict[str, Any] = {}
    removed = sorted(set(replicas) - set(wanted))
    added = sorted(set(wanted) - set(replicas))
    moved["replicas"] = [*wanted, *removed]
    if removed:
        moved["removing"] = removed
    if added:
        moved["adding"] = added
    return moved


def write() -> None:
    """Ask Java."""
    from interop.java_outputs import java_outputs

    asked = questions()
    answers = java_outputs("PartitionChanges", asked)
    CHANGES.parent.mkdir(exist_ok=True)
    CHANGES.write_text(
        "".join(f"{question}\t{answer}\n" for question, answer in zip(asked, answers, strict=True)),
        encoding="ascii",
    )


if __name__ == "__main__":
    write()
