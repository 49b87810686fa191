"""`kwire format`: its files, compared with those of Apache Kafka 4.3.1, and the arguments that it rejects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kwire.broker.controller.bootstrap import bootstrap_records
from kwire.broker.metadata.batches import MetadataBatch, decode_batches
from kwire.broker.metadata.features import RELEASES, UnknownLevel, default_levels, level_of_release
from kwire.broker.storage.checkpoints import read_meta_properties
from kwire.broker.storage.disk import RealDisk
from kwire.cli.main import main
from kwire.testing import Broker
from kwire.wire.primitives import uuid_from_text, uuid_to_text
from kwire.wire.records.metadata import FeatureLevelRecord, UserScramCredentialRecord
from kwire.wire.records.raft import SnapshotHeaderRecord, VotersRecord

DATA = Path(__file__).parents[1] / "raft" / "data"
KAFKA_4_4 = Path(__file__).parents[1] / "metadata" / "data" / "kafka-4.4.0-static.checkpoint"
"""The first snapshot of a directory that Apache Kafka 4.4.0 has formatted with --release-version 4.3-IV0."""
CLUSTER = "4L6g3nShT-eMCtK--X86sw"
LISTENERS = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:25093"
VOTER = "1@localhost:9093:JEXY6aqzQY-32P5TStzaFg"
ALICE = 'SCRAM-SHA-256=[name=alice,iterations=8192,salt="N3E=",saltedpassword="YCE="]'
VOTERS_FILE = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KAFKA_"):
            monkeypatch.delenv(name)


def properties(directory: Path, **settings: str) -> str:
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": LISTENERS,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@127.0.0.1:25093",
        "log.dirs": str(directory / "data"),
        **settings,
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items() if value))
    return str(path)


def dynamic(directory: Path, **settings: str) -> str:
    return properties(
        directory,
        **{
            "controller.quorum.voters": "",
            "controller.quorum.bootstrap.servers": "127.0.0.1:25093",
            **settings,
        },
    )


USAGE_ERRORS = "expected FEATURE=LEVEL", "use only one of", "--add-scram: "
"""Error messages of usage errors, which have exit status 2."""


def format_(*arguments: str) -> int:
    named = [] if "-t" in arguments else ["-t", CLUSTER]
    return main(["format", *named, *arguments])


def format_error(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 1) -> str:
    assert format_(*arguments) == status
    return capsys.readouterr().err


def read(path: Path) -> list[MetadataBatch]:
    return list(decode_batches(path.read_bytes()))


def levels(path: Path) -> list[tuple[str, int]]:
    return [
        (record.name, record.feature_level)
        for batch in read(path)
        for record in batch.records
        if isinstance(record, FeatureLevelRecord)
    ]


def test_static_quorum_is_formatted_as_by_kafka(tmp_path: Path) -> None:
    assert format_("--config", properties(tmp_path), "-t", CLUSTER) == 0
    assert levels(tmp_path / "data/bootstrap.checkpoint") == levels(DATA / "kafka-4.3.1-bootstrap.checkpoint")
    assert not (tmp_path / "data" / VOTERS_FILE).exists()
    found = read_meta_properties(RealDisk(), str(tmp_path / "data"))
    assert found is not None
    assert (found.cluster_id, found.node_id) == (CLUSTER, 1)


def test_standalone_quorum_is_formatted_as_by_kafka(tmp_path: Path) -> None:
    assert format_("-c", dynamic(tmp_path), "-t", CLUSTER, "-s") == 0
    ours, theirs = read(tmp_path / "data" / VOTERS_FILE), read(DATA / "kafka-4.3.1-standalone.checkpoint")
    assert [(one.base_offset, one.last_offset, one.epoch) for one in ours] == [
        (one.base_offset, one.last_offset, one.epoch) for one in theirs
    ]
    found = read_meta_properties(RealDisk(), str(tmp_path / "data"))
    assert found is not None
    for mine, kafkas in zip(ours[0].controls, theirs[0].controls, strict=True):
        if isinstance(kafkas, SnapshotHeaderRecord):
            assert isinstance(mine, SnapshotHeaderRecord)
            continue
        if isinstance(kafkas, VotersRecord):
            kafkas.voters[0].voter_directory_id = found.directory_id  # type: ignore[assignment]
        assert mine == kafkas
    assert levels(tmp_path / "data/bootstrap.checkpoint") == levels(DATA / "kafka-4.3.1-bootstrap.checkpoint")


def test_initial_controllers_are_written_with_their_directories(tmp_path: Path) -> None:
    directory = "JEXY6aqzQY-32P5TStzaFg"
    voters = f"1@localhost:9093:{directory},2@[::1]:9094:MvDxzVmcRsaTz33bUuRU6A"
    assert format_("-c", dynamic(tmp_path), "-t", CLUSTER, "--initial-controllers", voters) == 0
    found = read_meta_properties(RealDisk(), str(tmp_path / "data"))
    assert found is not None
    assert found.directory_id is not None
    assert uuid_to_text(found.directory_id) == directory
    [*_, record] = read(tmp_path / "data" / VOTERS_FILE)[0].controls
    assert isinstance(record, VotersRecord)
    assert [
        (voter.voter_id, voter.endpoints[0].host, voter.endpoints[0].port) for voter in record.voters
    ] == [(1, "localhost", 9093), (2, "0:0:0:0:0:0:0:1", 9094)]


def test_only_the_bootstrap_snapshot_is_read_only(tmp_path: Path) -> None:
    assert format_("-c", dynamic(tmp_path), "-s") == 0
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*") if path.is_file()
    }
    assert modes.pop(Path(VOTERS_FILE).name) == 0o400
    assert set(modes) == {"bootstrap.checkpoint", "meta.properties"}
    assert all(mode & 0o200 for mode in modes.values())


def test_every_directory_gets_the_bootstrap_file(tmp_path: Path) -> None:
    """Only the directory of the metadata log gets the voters."""
    names = ["a", "b", "m"]
    settings = {
        "log.dirs": f"{tmp_path}/a,{tmp_path}/b/",
        "metadata.log.dir": f"{tmp_path}/m",
    }
    assert format_("-c", dynamic(tmp_path, **settings), "-s") == 0
    contents = [(tmp_path / name / "bootstrap.checkpoint").read_bytes() for name in names]
    assert contents[0] == contents[1] == contents[2]
    assert [(tmp_path / name / VOTERS_FILE).exists() for name in names] == [False, False, True]


@pytest.mark.parametrize("cluster", ["my-cluster", "not a uuid", "a=b:c", " \t\x01 ", "A" * 22])
def test_cluster_id_can_be_any_text(tmp_path: Path, cluster: str) -> None:
    assert format_("-c", properties(tmp_path), "-t", cluster) == 0
    found = read_meta_properties(RealDisk(), str(tmp_path / "data"))
    assert found is not None
    assert found.cluster_id == cluster
    assert format_("-c", properties(tmp_path), "-t", cluster, "-g") == 0


def test_non_ascii_cluster_id_is_read_as_by_kafka(tmp_path: Path) -> None:
    """Kafka's tool writes UTF-8, reads ISO 8859-1, and then rejects the directory."""
    assert format_("-c", properties(tmp_path), "-t", "\N{SNOWMAN} =") == 0
    written = (tmp_path / "data/meta.properties").read_bytes()
    assert b"\ncluster.id=\xe2\x98\x83 \\=\n" in written
    found = read_meta_properties(RealDisk(), str(tmp_path / "data"))
    assert found is not None
    assert found.cluster_id == "\xe2\x98\x83 ="
    assert format_("-c", properties(tmp_path), "-t", "\N{SNOWMAN} =", "-g") == 1
    assert format_("-c", properties(tmp_path), "-t", found.cluster_id, "-g") == 0


@pytest.mark.parametrize(
    ("written_as", "stored"),
    [
        ("", "localhost"),
        ("[]", "localhost"),
        ("[::1]", "0:0:0:0:0:0:0:1"),
        ("[2001:DB8::1]", "2001:db8:0:0:0:0:0:1"),
        ("[fe80::1%7]", "fe80:0:0:0:0:0:0:1%7"),
        ("[::1%nosuch]", "::1%nosuch"),
        ("[::ffff:1.2.3.4]", "1.2.3.4"),
        ("[1::2:0:0:0.0.0.1]", "1:0:0:2:0:0:0:1"),
        ("[::zz]", "::zz"),
        ("127.1", "127.0.0.1"),
        ("010.1", "10.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("256.1.1.1", "256.1.1.1"),
        ("1.2.70000", "1.2.70000"),
        ("1.2.3.", "1.2.3."),
        ("0x7f.1", "0x7f.1"),
        ("1.2.3.4.5", "1.2.3.4.5"),
        (" 1.2.3.4 ", " 1.2.3.4 "),
        ("LocalHost", "LocalHost"),
    ],
)
def test_voter_hosts_are_stored_as_by_kafka(tmp_path: Path, written_as: str, stored: str) -> None:
    """The expected values were written by Apache Kafka 4.3.1 on Java 17."""
    voter = f" +1@{written_as}:+9093:JEXY6aqzQY-32P5TStzaFg== "
    assert format_("-c", dynamic(tmp_path), "-t", CLUSTER, "-I", voter) == 0
    [*_, record] = read(tmp_path / "data" / VOTERS_FILE)[0].controls
    assert isinstance(record, VotersRecord)
    [[endpoint]] = [voter.endpoints for voter in record.voters]
    assert (endpoint.name, endpoint.host, endpoint.port) == ("CONTROLLER", stored, 9093)


@pytest.mark.parametrize(
    "voter",
    [
        "1@localhost:70000:JEXY6aqzQY-32P5TStzaFg",
        "1@localhost:-1:JEXY6aqzQY-32P5TStzaFg",
        " -1@localhost:9093:JEXY6aqzQY-32P5TStzaFg",
        "3000000000@localhost:9093:JEXY6aqzQY-32P5TStzaFg",
        "@localhost:9093:JEXY6aqzQY-32P5TStzaFg",
        "1 @localhost:9093:JEXY6aqzQY-32P5TStzaFg",
        "1@localhost: 9093:JEXY6aqzQY-32P5TStzaFg",
        "1@localhost:9_093:JEXY6aqzQY-32P5TStzaFg",
        "1@localhost:9093: JEXY6aqzQY-32P5TStzaFg",
        "1@localhost:9093:JEXY6aqzQY-32P5TStzaFg=",
        "1@localhost:9093:JEXY6aqzQY-32P5TStzaFg:",
        "1@localhost:9093:",
        "1@::1:9093:JEXY6aqzQY-32P5TStzaFg",
        "1@[::1:9093:JEXY6aqzQY-32P5TStzaFg",
        "1@[::1]x:9093:JEXY6aqzQY-32P5TStzaFg",
    ],
)
def test_invalid_voter_is_rejected_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], voter: str
) -> None:
    told = format_error(capsys, "-c", dynamic(tmp_path), "-t", CLUSTER, "-I", voter)
    assert f"--initial-controllers has {voter.strip()!r}: expected id@host:port:directory" in told
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("settings", "stored"),
    [
        ({}, ("CONTROLLER", "127.0.0.1", 25093)),
        ({"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"}, ("CONTROLLER", "localhost", 9093)),
        (
            {
                "listeners": "PLAINTEXT://:9092,CONTROLLER://0.0.0.0:9093",
                "advertised.listeners": "PLAINTEXT://a:9092",
            },
            ("CONTROLLER", "localhost", 9093),
        ),
        (
            {"advertised.listeners": "PLAINTEXT://a:9092,CONTROLLER://b.example:9099"},
            ("CONTROLLER", "b.example", 9099),
        ),
        (
            {
                "listeners": f"{LISTENERS},OTHER://127.1:9094",
                "controller.listener.names": "OTHER,CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OTHER:PLAINTEXT",
            },
            ("OTHER", "127.0.0.1", 9094),
        ),
    ],
    ids=["listeners", "every interface", "meta address", "advertised", "order"],
)
def test_standalone_voter_has_the_advertised_endpoint(
    tmp_path: Path, settings: dict[str, str], stored: tuple[str, str, int]
) -> None:
    assert format_("-c", dynamic(tmp_path, **settings), "-t", CLUSTER, "-s") == 0
    [*_, record] = read(tmp_path / "data" / VOTERS_FILE)[0].controls
    assert isinstance(record, VotersRecord)
    [[endpoint]] = [voter.endpoints for voter in record.voters]
    assert (endpoint.name, endpoint.host, endpoint.port) == stored


def test_spaces_around_a_feature_and_its_level_are_ignored(tmp_path: Path) -> None:
    assert format_("-c", properties(tmp_path), "-t", CLUSTER, "-f", " group.version = +0 ") == 0
    assert "group.version" not in dict(levels(tmp_path / "data/bootstrap.checkpoint"))


@pytest.mark.parametrize("flags", [["-s"], ["-N"], ["-I", VOTER]])
def test_quorum_without_configured_voters_is_dynamic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """A dynamic quorum needs kraft.version 1: with --standalone, --no-initial-controllers (-N) and -I."""
    file = dynamic(tmp_path)
    told = format_error(capsys, "-c", file, "-t", CLUSTER, "-f", "kraft.version=0", *flags)
    assert "kraft.version must be 1 here, not 0" in told
    assert not (tmp_path / "data").exists()
    assert format_("-c", file, "-t", CLUSTER, "-f", "kraft.version=1", *flags) == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\1\2",
        b"node.id=1\ncluster.id=" + CLUSTER.encode(),
        b"version=0\ncluster.id=" + CLUSTER.encode(),
        b"version:0\nbroker.id 1\n",
    ],
)
def test_meta_properties_without_an_owner_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file = tmp_path / "data/meta.properties"
    file.parent.mkdir()
    file.write_bytes(content)
    assert "is formatted already" in format_error(capsys, "-c", properties(tmp_path), "-t", CLUSTER)
    assert format_("-c", properties(tmp_path), "-t", CLUSTER, "-g") == 0
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"cluster.id=other\n", "belongs to cluster other, not to"),
        (b"broker.id=2\n", "belongs to node 2, and node.id is 1"),
        (b"directory.id=AAAAAAAAAAAAAAAAAAAAAQ\n", "which is reserved"),
    ],
)
def test_partial_meta_properties_must_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, told: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/meta.properties").write_bytes(content)
    assert told in format_error(capsys, "-c", properties(tmp_path), "-t", CLUSTER, "-g")


def test_missing_cluster_id_error_proposes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", "-c", properties(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "--cluster-id is missing: for a new cluster, use --cluster-id " in told
    assert len(uuid_from_text(told.split()[-1])) == 16
    assert not (tmp_path / "data").exists()


def test_scram_credentials_follow_the_feature_levels(tmp_path: Path) -> None:
    bob = "SCRAM-SHA-512=[name=bob,password=x]"
    assert format_("-c", properties(tmp_path), "-S", ALICE, "--add-scram", bob) == 0
    [batch] = [batch for batch in read(tmp_path / "data/bootstrap.checkpoint") if batch.records]
    assert [type(record).__name__ for record in batch.records] == [
        *["FeatureLevelRecord"] * 6,
        *["UserScramCredentialRecord"] * 2,
    ]
    with Broker({"node.id": "1"}, log_dir=str(tmp_path / "data")) as broker:
        assert broker.bootstrap_servers
    log = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("data/__cluster_metadata-0/*.log")))
    stored = [
        record
        for one in decode_batches(log)
        for record in one.records
        if isinstance(record, UserScramCredentialRecord)
    ]
    assert [(record.name, record.mechanism) for record in stored] == [("alice", 1), ("bob", 2)]


def test_feature_level_0_is_not_written(tmp_path: Path) -> None:
    assert format_("-c", properties(tmp_path), "--release-version", "3.9") == 0
    assert levels(tmp_path / "data/bootstrap.checkpoint") == [("metadata.version", 21)]


WITHOUT_UNSERVED = "--feature", "share.version=0", "--feature", "streams.version=0"


def test_features_that_kwire_brokers_lack_cause_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert format_("-c", properties(tmp_path)) == 0
    out, note = capsys.readouterr()
    assert out.startswith("formatted ")
    assert note.startswith("kwire: the cluster starts with share.version 1 and streams.version 1, ")
    assert note.endswith(f"format them with {' '.join(WITHOUT_UNSERVED)}\n")
    # Nothing was formatted.
    assert format_("-c", properties(tmp_path), "--ignore-formatted") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("flags", [WITHOUT_UNSERVED, ("--release-version", "4.0")])
def test_features_that_kwire_brokers_have_cause_no_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    assert format_("-c", properties(tmp_path), *flags) == 0
    assert capsys.readouterr().err == ""


def test_note_names_only_the_enabled_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert format_("-c", properties(tmp_path), "--feature", "share.version=0") == 0
    assert capsys.readouterr().err.endswith("format them with --feature streams.version=0\n")


def test_broker_without_a_controller_gets_no_note_because_controllers_choose_the_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(properties(tmp_path))
    path.write_text(
        f"process.roles=broker\nnode.id=1\nlog.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        "controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:9093\n"
    )
    assert format_("-c", str(path)) == 0
    assert capsys.readouterr().err == ""


def test_controller_that_joins_a_cluster_gets_no_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = properties(tmp_path, **{"controller.quorum.voters": ""})
    assert format_("-c", path, "--no-initial-controllers") == 0
    assert capsys.readouterr().err == ""


def test_requested_feature_levels_are_written(tmp_path: Path) -> None:
    wanted = ["-f", "transaction.version=1", "-f", "share.version=0", "-f", "metadata.version=28"]
    assert format_("-c", properties(tmp_path), *wanted, "-f", "kraft.version=0") == 0
    assert dict(levels(tmp_path / "data/bootstrap.checkpoint")) == {
        "metadata.version": 28,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "transaction.version": 1,
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("3.3", "3.3-IV3"),
        ("3.5-IV0", "3.5-IV0"),
        ("3.5", "3.5-IV2"),
        ("4.0", "4.0-IV3"),
        ("4.3.1", "4.3-IV0"),
    ],
)
def test_release_version_maps_to_its_last_metadata_version(text: str, name: str) -> None:
    assert RELEASES[level_of_release(text)] == name


@pytest.mark.parametrize("text", ["3.2", "3.3-IV2", "4.4", "4.4-IV0", "nope", ""])
def test_unknown_release_is_rejected(text: str) -> None:
    with pytest.raises(UnknownLevel, match=r"expected one of 3\.3-IV3, .*, 4\.3-IV0"):
        level_of_release(text)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (21, (0, 0, 0, 0, 0)),
        (22, (0, 1, 0, 0, 0)),
        (25, (0, 1, 0, 0, 2)),
        (27, (1, 1, 0, 0, 2)),
        (28, (1, 1, 1, 0, 2)),
        (30, (1, 1, 1, 1, 2)),
    ],
)
def test_default_feature_levels_are_kafkas(level: int, expected: tuple[int, ...]) -> None:
    """The expected values are from `kafka-storage version-mapping` of Apache Kafka 4.3.1."""
    assert tuple(default_levels(level)[name] for name in sorted(default_levels(level))) == expected


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["-f", "foo.version=1"],
            "unknown feature foo.version: expected one of metadata.version, kraft.version",
        ),
        (["-f", "group.version=7"], "group.version is 7: expected 0 to 1"),
        (["-f", "metadata.version=31"], "metadata.version is 31: expected 7 to 30"),
        (["-f", "kraft.version=1"], "kraft.version must be 0 here, not 1"),
        (["-f", "group.version"], "expected FEATURE=LEVEL"),
        (["-f", "group.version=x"], "expected FEATURE=LEVEL"),
        (["-r", "4.4"], "unknown release version '4.4'"),
        (["-r", "3.9", "-f", "metadata.version=20"], "set either the release version or metadata.version"),
        (
            ["-r", "3.9", "-f", "eligible.leader.replicas.version=1"],
            "eligible.leader.replicas.version 1 requires metadata.version 23",
        ),
        (["-s"], "remove controller.quorum.voters"),
        (["-I", "1@localhost:9093"], "expected id@host:port:directory"),
        (["-I", f"{VOTER},{VOTER}"], "--initial-controllers names node 1 more than once"),
        (["-I", ","], "--initial-controllers names no voter"),
        (["-s", "-N"], "use only one of"),
        (["-I", VOTER, "-N"], "use only one of"),
        (["-S", "SCRAM-SHA-256=[name=alice]"], "--add-scram: password= or saltedpassword="),
        (["-S", ALICE, "-r", "3.4"], "--add-scram needs metadata.version 11 (3.5-IV2) or newer"),
    ],
)
def test_invalid_arguments_are_rejected_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    status = 2 if told.startswith(USAGE_ERRORS) else 1
    assert told in format_error(capsys, "-c", properties(tmp_path), *arguments, status=status)
    assert not (tmp_path / "data").exists()


def test_voters_are_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--standalone, --initial-controllers or" in format_error(capsys, dynamic(tmp_path))
    assert format_(dynamic(tmp_path), "--no-initial-controllers") == 0
    assert not (tmp_path / "data" / VOTERS_FILE).exists()


def test_formatted_directories_are_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "data", tmp_path / "more"
    assert format_("-c", properties(tmp_path), "-t", CLUSTER) == 0
    before = (first / "meta.properties").read_bytes()
    both = properties(tmp_path, **{"log.dirs": f"{first},{second}"})
    assert "is formatted already; --ignore-formatted leaves" in format_error(
        capsys, "-c", both, "-t", CLUSTER
    )
    assert not second.exists()
    assert format_("-c", both, "-t", CLUSTER, "-g") == 0
    assert (first / "meta.properties").read_bytes() == before
    assert (second / "meta.properties").exists()
    assert (second / "bootstrap.checkpoint").exists()


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_records_of_an_interrupted_format_are_replaced(tmp_path: Path, *, is_dynamic: bool) -> None:
    left = tmp_path / "data" / VOTERS_FILE
    left.parent.mkdir(parents=True)
    left.write_bytes(KAFKA_4_4.read_bytes())
    quorum = [dynamic(tmp_path), "-s"] if is_dynamic else [properties(tmp_path)]
    assert format_(*quorum, "-r", "4.0") == 0
    assert left.exists() == is_dynamic
    found = bootstrap_records(RealDisk(), str(tmp_path / "data"))
    assert FeatureLevelRecord(name="metadata.version", feature_level=25) in found


def test_broker_starts_on_a_directory_formatted_by_kafka_4_4(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / VOTERS_FILE).parent.mkdir(parents=True)
    (data / VOTERS_FILE).write_bytes(KAFKA_4_4.read_bytes())
    (data / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id={CLUSTER}\n")
    for _ in range(2):
        with Broker({"node.id": "1"}, log_dir=str(data)):
            pass
    log = b"".join(path.read_bytes() for path in sorted(data.glob("__cluster_metadata-0/*.log")))
    names = [
        record.name
        for batch in decode_batches(log)
        for record in batch.records
        if isinstance(record, FeatureLevelRecord | UserScramCredentialRecord)
    ]
    assert names == [name for name, _ in levels(KAFKA_4_4)], "written once"


def test_directory_of_another_node_or_cluster_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert format_("-c", properties(tmp_path), "-t", CLUSTER) == 0
    other = dynamic(tmp_path)
    for more in ([], ["-g"]):
        told = format_error(capsys, "-c", other, "--node-id", "2", "-s", *more)
        assert "belongs to node 1, and node.id is 2: set node.id=1, or use another directory" in told
        told = format_error(capsys, "-c", other, "-s", "-t", "JEXY6aqzQY-32P5TStzaFg", *more)
        assert f"belongs to cluster {CLUSTER}, not to JEXY6aqzQY-32P5TStzaFg" in told


@pytest.mark.parametrize("flags", [["-s"], ["-N"], ["-s", "-r", "4.0"]])
def test_broker_starts_on_formatted_directories(tmp_path: Path, flags: list[str]) -> None:
    data = tmp_path / "data"
    assert format_("-c", dynamic(tmp_path), "-t", CLUSTER, *flags) == 0
    settings = {
        "listeners": LISTENERS.replace("25093", "0"),
        "advertised.listeners": LISTENERS,
        "controller.listener.names": "CONTROLLER",
        "node.id": "1",
    }
    for _ in range(2):
        with Broker(settings, log_dir=str(data)):
            pass
    log = b"".join(path.read_bytes() for path in sorted(data.glob("__cluster_metadata-0/*.log")))
    voters = [
        control
        for batch in decode_batches(log)
        for control in batch.controls
        if isinstance(control, VotersRecord)
    ]
    # Said once by the first leader; the second finds it in the log, and nothing has changed.
    assert len(voters) == flags.count("-s")
    state = (data / "__cluster_metadata-0/quorum-state").read_text()
    assert f'"data_version":{flags.count("-s")}' in state
