"""Java programs that write exactly once go on while the brokers of their coordinators and data are killed."""

from __future__ import annotations

import random
import tempfile
import threading
from pathlib import Path
from typing import Self

import pytest

from interop.cluster import dying
from interop.cluster.nodes import MAKEUPS, Cluster, eventually
from interop.exactly_once.clients import READERS
from interop.exactly_once.copying import COPY, INSTANCES, PARTITIONS, SOURCE, Copied, Feeding, Instances, read

KILLS = 4
WORKS_S = 90.0
"""How long programs may do nothing after a death: sessions and transactions end, JVMs start."""


class Watching:
    """Reads what is committed all the time, as it is committed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.content: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
        self.count = 0
        self._reader = READERS["confluent"](bootstrap, topic, dict.fromkeys(self.content, 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            for partition, _, value in self._reader.poll():
                self.content[partition].append(value)
                self.count += 1
        self._reader.close()

    def until(self, count: int) -> None:
        eventually(lambda: self.count >= count, f"{self.count} are committed, not {count}", WORKS_S)


@pytest.mark.parametrize("makeup", MAKEUPS)
def test_copiers_in_java_copy_every_record_exactly_once(makeup: str) -> None:
    """Three of them in a group; with each broker one dies as well, and comes back a little later."""
    rng = random.Random(makeup)
    with (
        Cluster(MAKEUPS[makeup], dying.SETTINGS).start() as cluster,
        tempfile.TemporaryDirectory(prefix="interop-copiers-") as directory,
    ):
        dying.make_topics(cluster, PARTITIONS, SOURCE, COPY)
        instances = Instances(cluster.bootstrap, Path(directory))
        with Watching(cluster.bootstrap, COPY, PARTITIONS) as committed:
            feeding = Feeding(cluster.bootstrap)
            try:
                for number in range(INSTANCES):
                    instances.start(number)
                dying.kill_in_turn(
                    cluster,
                    KILLS,
                    lambda: committed.until(committed.count + 500),
                    lambda _: instances.replace(rng.randrange(INSTANCES)),
                )
                written = feeding.end()
                committed.until(written)
            finally:
                instances.discard()
            dying.until_nothing_is_open(cluster)
            source, copy = (read(cluster.bootstrap, topic, written) for topic in (SOURCE, COPY))
        copied = Copied(source, copy, KILLS, KILLS)
        print(f"{written} records")
        assert not copied.wrong(), "\n".join(copied.wrong())
        assert copied.records == written
        assert committed.content == copy
        dying.check_replicas(cluster)
