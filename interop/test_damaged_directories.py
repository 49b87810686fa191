"""New and damaged data directories: both brokers must start on them, or both must fail to start.

Each case modifies two directories that Apache Kafka has written, and starts each broker on a copy of the
result. A broker that starts must not remove a partition.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.brokers import ApacheKafka, Broker, Kwire, responds_to_api_versions
from interop.raw_client import RawClient

PARTITIONS = 4
EXIT_SECONDS = 60.0


class Case:
    """The two directories of a case, and their order in `log.dirs`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = {"log.dirs": f"{root}/a,{root}/b"}

    def partition(self, name: str) -> Path:
        """Return the path of one partition of `t` in the directory `name`."""
        return next(path for path in sorted((self.root / name).glob("t-*")) if path.is_dir())


def _reorder(case: Case) -> None:
    case.settings = {"log.dirs": f"{case.root}/b,{case.root}/a"}


def _name_another_metadata_directory(case: Case) -> None:
    case.settings["metadata.log.dir"] = f"{case.root}/b"


def _unmount(name: str) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        (case.root / name).rename(case.root / "elsewhere")
        (case.root / name).mkdir()

    return change


def _add_a_new_one(case: Case) -> None:
    case.settings["log.dirs"] += f",{case.root}/new"


def _lose_meta_properties(case: Case) -> None:
    for name in ("a", "b"):
        (case.root / name / "meta.properties").unlink()


def _copy_meta_properties(case: Case) -> None:
    shutil.copy(case.root / "a/meta.properties", case.root / "b/meta.properties")


def _garble_meta_properties(name: str, text: str) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        (case.root / name / "meta.properties").write_text(text)

    return change


def _forget_the_directory_id(case: Case) -> None:
    path = case.root / "b/meta.properties"
    kept = [line for line in path.read_text().splitlines() if not line.startswith("directory.id")]
    path.write_text("\n".join(kept))


def _garble_partition_metadata(name: str, text: str) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        (case.partition(name) / "partition.metadata").write_text(text)

    return change


def _garble_quorum_state(case: Case) -> None:
    (case.root / "a/__cluster_metadata-0/quorum-state").write_text("{")


CASES: dict[str, tuple[Callable[[Case], None], bool]] = {
    "unchanged": (lambda case: None, True),
    "another order": (_reorder, False),
    "another metadata.log.dir": (_name_another_metadata_directory, False),
    "first not mounted": (_unmount("a"), False),
    "second not mounted": (_unmount("b"), False),
    "a new directory": (_add_a_new_one, False),
    "no meta.properties": (_lose_meta_properties, False),
    "a copy of meta.properties": (_copy_meta_properties, False),
    "meta.properties without a node id": (_garble_meta_properties("b", "garbage"), False),
    "meta.properties to come": (_garble_meta_properties("b", "version=2\ncluster.id=x\nnode.id=1\n"), True),
    "no directory.id": (_forget_the_directory_id, True),
    "partition.metadata empty": (_garble_partition_metadata("a", ""), False),
    "partition.metadata malformed": (_garble_partition_metadata("b", "version: 0\ntopic\n"), True),
    "quorum-state": (_garble_quorum_state, False),
}
"""By case name: the function that damages the directories, and whether Apache Kafka 4.3.1 then starts."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the parent of two directories with a topic, which Apache Kafka wrote and shut down cleanly."""
    root = tmp_path_factory.mktemp("template")
    broker = ApacheKafka({"log.dirs": f"{root}/a,{root}/b"})
    try:
        broker.start()
        with RawClient(broker.bootstrap) as client:
            topic = {
                "Name": "t", "NumPartitions": PARTITIONS, "ReplicationFactor": 1,
                "Assignments": [], "Configs": [],
            }  # fmt: skip
            answer = client.call("CreateTopics", 5, Topics=[topic], timeoutMs=30_000, validateOnly=False)
        assert [topic["ErrorCode"] for topic in answer["Topics"]] == [0]
        # CreateTopics returns before the broker has applied the metadata and created the logs.
        deadline = time.monotonic() + EXIT_SECONDS
        while len(list(root.glob("*/t-*/partition.metadata"))) < PARTITIONS:
            assert time.monotonic() < deadline, broker.log_text()
            time.sleep(0.1)
        broker.stop()
        yield root
    finally:
        broker.discard()


def serves(broker: Broker) -> bool:
    """Start a broker and return whether it still runs after it has loaded its logs."""
    broker.start(wait=False)
    process = broker.process
    assert process is not None
    deadline = time.monotonic() + EXIT_SECONDS
    while process.poll() is None:
        # Apache Kafka responds to requests before it has loaded its logs.
        if responds_to_api_versions(broker.port) and (broker.name == "kwire" or _settled(process)):
            return process.poll() is None
        assert time.monotonic() < deadline, f"{broker.name} neither serves nor ends:\n{broker.log_text()}"
        time.sleep(0.1)
    return False


def _settled(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        return True
    return False


@pytest.mark.parametrize("name", CASES)
def test_both_start_or_both_fail(name: str, template: Path, tmp_path: Path, only: str) -> None:
    change, expected = CASES[name]
    for kind in (ApacheKafka, Kwire):
        if only not in ("", kind.name):
            continue
        root = tmp_path / kind.name
        shutil.copytree(template, root)
        case = Case(root)
        change(case)
        before = sorted(path.relative_to(root) for path in root.glob("*/t-*"))
        broker = kind(case.settings, directory=tmp_path)
        broker.properties_path.touch()  # an existing file prevents formatting
        try:
            assert (kind.name, serves(broker)) == (kind.name, expected), broker.log_text()[-2000:]
            assert sorted(path.relative_to(root) for path in root.glob("*/t-*")) == before
            assert "Traceback" not in broker.log_text()
            if name == "no directory.id":
                assert "directory.id=" in (root / "b/meta.properties").read_text()
        finally:
            broker.discard()
            broker.log_path.unlink(missing_ok=True)
