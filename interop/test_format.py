"""`kwire format` and Apache Kafka's StorageTool must write the same files, or both fail and change no file.

Each case consists of the voters, the arguments, and the previous content of the first directory.
"""

from __future__ import annotations

import re
import subprocess
from base64 import urlsafe_b64decode
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from interop.batches import walk
from interop.brokers import Kwire
from interop.tools import run

CLUSTER = "4L6g3nShT-eMCtK--X86sw"
DIRECTORY = "JEXY6aqzQY-32P5TStzaFg"
VOTER = f"1@127.0.0.1:9093:{DIRECTORY}"
STATIC = {"controller.quorum.voters": "1@127.0.0.1:9093"}
DYNAMIC = {"controller.quorum.bootstrap.servers": "127.0.0.1:9093"}
REPOSITORY = Path(__file__).resolve().parent.parent
BATCH_HEADER_BYTES = 61


class Case(NamedTuple):
    """An invocation of both tools."""

    quorum: dict[str, str]
    """Settings of the quorum. The text {root} stands for the parent of the data directories."""
    arguments: list[str]
    meta_properties: bytes | None = None
    """The initial content of meta.properties in the first directory, or None if there is no such file."""


def _named(content: str, *more: str) -> Case:
    return Case(STATIC, ["-t", CLUSTER, *more], content.format(cluster=CLUSTER).encode())


CASES: dict[str, Case] = {
    "static": Case(STATIC, ["-t", CLUSTER]),
    "no cluster": Case(STATIC, []),
    "static and -s": Case(STATIC, ["-t", CLUSTER, "-s"]),
    "static and -N": Case(STATIC, ["-t", CLUSTER, "-N"]),
    "static and -I": Case(STATIC, ["-t", CLUSTER, "-I", VOTER]),
    "scram": Case(STATIC, ["-t", CLUSTER, "-S", "SCRAM-SHA-256=[name=a,password=x,salt=N3E=]", "-r", "4.0"]),
    "scram without password": Case(STATIC, ["-t", CLUSTER, "-S", "SCRAM-SHA-256=[name=a]"]),
    "scram too early": Case(STATIC, ["-t", CLUSTER, "-S", "SCRAM-SHA-512=[name=a,password=x]", "-r", "3.4"]),
    "dynamic": Case(DYNAMIC, ["-t", CLUSTER]),
    "dynamic and -s": Case(DYNAMIC, ["-t", CLUSTER, "-s"]),
    "dynamic and -N": Case(DYNAMIC, ["-t", CLUSTER, "-N"]),
    "dynamic and -s -N": Case(DYNAMIC, ["-t", CLUSTER, "-s", "-N"]),
    "dynamic and -I": Case(DYNAMIC, ["-t", CLUSTER, "-I", VOTER]),
    "a voter twice": Case(DYNAMIC, ["-t", CLUSTER, "-I", f"{VOTER},{VOTER}"]),
    "voters of others": Case(DYNAMIC, ["-t", CLUSTER, "-I", f"2@a:1:{DIRECTORY},3@b:2:{DIRECTORY}"]),
    "every interface": Case(
        {**DYNAMIC, "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"}, ["-t", CLUSTER, "-s"]
    ),
    "advertised": Case(
        {**DYNAMIC, "advertised.listeners": "PLAINTEXT://a:9092,CONTROLLER://b.example:9099"},
        ["-t", "c", "-s"],
    ),
    "two controller listeners": Case(
        {
            **DYNAMIC,
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,OTHER://127.1:9094",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OTHER:PLAINTEXT",
            "controller.listener.names": "OTHER,CONTROLLER",
        },
        ["-t", "c", "-s"],
    ),
    "two kinds of voters": Case(DYNAMIC, ["-t", CLUSTER, "-s", "-I", VOTER]),
    "voters and none": Case(DYNAMIC, ["-t", CLUSTER, "-N", "-I", VOTER]),
    "two voters in one place": Case(DYNAMIC, ["-t", CLUSTER, "-I", f"2@a:1:{DIRECTORY},1@a:1:{DIRECTORY}"]),
    "both ways to find voters": Case({**STATIC, **DYNAMIC}, ["-t", CLUSTER]),
    "both ways to find voters, and -s": Case({**STATIC, **DYNAMIC}, ["-t", CLUSTER, "-s"]),
    "an older release and -s": Case(DYNAMIC, ["-t", CLUSTER, "-s", "-r", "3.8"]),
    "an older release and -I": Case(DYNAMIC, ["-t", CLUSTER, "-I", VOTER, "-r", "3.9"]),
    **{
        f"the metadata elsewhere {' '.join(flags)}": Case(
            {**DYNAMIC, "metadata.log.dir": "{root}/b"}, ["-t", CLUSTER, *flags]
        )
        for flags in (["-s"], ["-N"], ["-I", VOTER])
    },
    **{
        f"{role} {quorum} {' '.join(flags)}": Case({**settings, **at, **of_role}, ["-t", CLUSTER, *flags])
        for role, of_role in (
            ("broker", {"process.roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:9092"}),
            ("controller", {"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9093"}),
        )
        for at in [{"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"}]
        for quorum, settings in (
            ("static", {"controller.quorum.voters": f"{2 if role == 'broker' else 1}@127.0.0.1:9093"}),
            ("dynamic", DYNAMIC),
        )
        for flags in ([], ["-s"], ["-N"], ["-I", VOTER], ["-I", f"2@a:1:{DIRECTORY}"])
    },
    **{
        f"{quorum} kraft.version {level} {' '.join(flags)}": Case(
            settings, ["-t", CLUSTER, "-f", f"kraft.version={level}", *flags]
        )
        for quorum, settings in (("static", STATIC), ("dynamic", DYNAMIC))
        for level in (0, 1, 2)
        for flags in ((["-s"], ["-N"], ["-I", VOTER]) if quorum == "dynamic" else ([],))
    },
    **{
        f"-f {feature}": Case(STATIC, ["-t", CLUSTER, "-f", feature])
        for feature in (
            " group.version = 0 ", "group.version=+0", "group.version=0x0", "group.version=1_0",
            "group.version=-1", "group.version=32768", "group.version", "=1", "\tshare.version=\t1\n",
        )
    },
    **{
        f"-I {voter}": Case(DYNAMIC, ["-t", CLUSTER, "-I", voter])
        for voter in (
            *(
                f"1@{host}:9093:{DIRECTORY}"
                for host in (
                    "", "[]", "[::1]", "[2001:DB8::1]", "[fe80::1%7]", "[::1%nosuch]", "[::ffff:1.2.3.4]",
                    "[1::2:0:0:0.0.0.1]", "[::zz]", "[::1", "::1", "[::1]x", "127.1", "010.1", "2130706433",
                    "256.1.1.1", "1.2.70000", "1.2.3.", "0x7f.1", " 1.2.3.4 ", "LocalHost", "nowhere.invalid",
                )
            ),
            *(f"1@a:{port}:{DIRECTORY}" for port in ("70000", "65535", "0", "+1", " 1", "1_0", "", "-1")),
            *(f"{node}@a:1:{DIRECTORY}" for node in ("", " 1", "1 ", "+1", " -1", "2147483648", "x")),
            *(
                f"1@a:1:{directory}"
                for directory in ("", "x", f"{DIRECTORY}==", f"{DIRECTORY}=", f" {DIRECTORY}", "A" * 22)
            ),
            "", ",", f" ,{VOTER}", f",{VOTER},", f" {VOTER} ",
        )
    },
    **{
        f"-t {cluster!r}": Case(STATIC, ["-t", cluster])
        for cluster in (
            "my=cluster: x", " a\tb\\c#d!e\x01\x7f\n ", "\xfcmlaut", "\N{SNOWMAN}\N{GRINNING FACE}", "",
        )
    },
    **{
        f"{content!r} {' '.join(more)}": _named(content, *more)
        for content in (
            "", "\0\1\2", "garbage", "node.id=1\ncluster.id={cluster}\n", "version=0\ncluster.id={cluster}\n",
            "cluster.id=other\n", "broker.id=2\n", "broker.id=x\n", "directory.id=AAAAAAAAAAAAAAAAAAAAAQ\n",
            "version=+01 \nnode.id=1\ncluster.id={cluster}\n",
            "version=1\nnode.id=1 \ncluster.id={cluster}\n",
            "version 1\nnode.id:1\ncluster\\.id = \\u0034L6g3nShT-\\\n  eMCtK--X86sw\n", "version=\\u1\n",
            "version=1\nnode.id=1\ncluster.id={cluster}\ndirectory.id= JEXY6aqzQY-32P5TStzaFg \n",
            "version=1\nnode.id=1\ncluster.id={cluster}\ndirectory.id=JEXY6aqzQY+32P5TStzaFg\n",
            "version=2\n", "version=1\nnode.id=1\n", "version=1\nnode.id=2\ncluster.id={cluster}\n",
        )
        for more in ([], ["-g"])
    },
    "a cluster's id in ISO 8859-1": Case(
        STATIC, ["-t", "\xfc", "-g"], b"version=1\nnode.id=1\ncluster.id=\xfc\n"
    ),
    "a cluster's id in UTF-8": Case(
        STATIC, ["-t", "\xfc", "-g"], "version=1\nnode.id=1\ncluster.id=\xfc\n".encode()
    ),
    "a cluster's id in escapes": Case(
        STATIC, ["-t", "\xfc\N{GRINNING FACE}", "-g"],
        b"version=1\nnode.id=1\ncluster.id=\\u00fc\\uD83D\\uDE00\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_both_tools_write_the_same_files(name: str, tmp_path: Path) -> None:
    """Compare exit status, file names, modes, and all content except times and random values."""
    results = [_formatted(kind, CASES[name], tmp_path / kind) for kind in ("apache", "kwire")]
    assert results[0] == results[1]


@pytest.mark.parametrize("cluster", ["a=b: c#", "\xfcmlaut", "\N{SNOWMAN}"])
@pytest.mark.parametrize("writer", ["apache", "kwire"])
def test_both_tools_reject_or_reformat_alike(cluster: str, writer: str, tmp_path: Path) -> None:
    """Check that both tools read the cluster id in an existing meta.properties as ISO-8859-1."""
    case = Case(STATIC, ["-t", cluster, "-g"])
    assert _formatted(writer, case, tmp_path)[0] == 0
    assert {_run(kind, case, tmp_path) for kind in ("apache", "kwire")} == {0 if cluster.isascii() else 1}
    read = cluster.encode().decode("iso-8859-1")
    assert [_run(kind, Case(STATIC, ["-t", read, "-g"]), tmp_path) for kind in ("apache", "kwire")] == [0, 0]


def _formatted(kind: str, case: Case, root: Path) -> tuple[int, list[tuple[str, int, object]]]:
    """Run the tool. Return its exit status, and the name, mode and content of each file."""
    root.mkdir(exist_ok=True)
    if case.meta_properties is not None:
        (root / "a").mkdir()
        (root / "a/meta.properties").write_bytes(case.meta_properties)
    status = _run(kind, case, root)
    files = [path for path in sorted(root.glob("[ab]/**/*")) if path.is_file()]
    return status, [(str(path.relative_to(root)), path.stat().st_mode, _content(path)) for path in files]


def _content(path: Path) -> object:
    content = path.read_bytes()
    if path.suffix == ".properties":
        lines = content.splitlines()
        return sorted(line for line in lines if not line.startswith((b"#", b"directory.id")))
    owner = (path.parent / "meta.properties", path.parent.parent / "meta.properties")
    given = re.search(
        rb"^directory\.id=(.+)$", next(file for file in owner if file.exists()).read_bytes(), re.M
    )
    assert given is not None
    directory_id = urlsafe_b64decode(given[1] + b"==")
    batches, position = [], 0
    for header in walk(content):
        size = header["length"] + 12
        records = content[position + BATCH_HEADER_BYTES : position + size].replace(directory_id, bytes(16))
        if position == 0:  # the first record contains a timestamp
            records = records[1 + records[0] // 2 :]
        position += size
        batches.append((header["attributes"], header["records_count"], size, records))
    return batches


@cache
def _kwire() -> list[str]:
    broker = Kwire()
    broker.discard()
    return broker.command()[:-2]


def _run(kind: str, case: Case, root: Path) -> int:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{root}/a,{root}/b",
        **{key: value.replace("{root}", str(root)) for key, value in case.quorum.items()},
    }
    file = root / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    arguments = ["format", "-c", str(file), *case.arguments]
    if kind == "apache":
        return int(run("kafka.tools.StorageTool", *arguments).status != 0)
    # Pass bytes, because non-ASCII arguments must be UTF-8 in every locale.
    process = subprocess.run(
        [*_kwire(), *(argument.encode() for argument in arguments)],
        capture_output=True,
        timeout=120,
        check=False,
        cwd=REPOSITORY,
    )
    assert b"Traceback" not in process.stderr, process.stderr
    return int(process.returncode != 0)
