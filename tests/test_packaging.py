"""The distribution has one package, and works beside local packages with similar names.

The build backend builds the wheel from the sdist. Nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from urllib.request import urlopen
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import kwire

ROOT = Path(__file__).resolve().parent.parent
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = CONFIG["project"]["optional-dependencies"]
DEPENDENCIES = CONFIG["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]
THEIRS = ("broker", "coordinator", "pipeline")
CLIENTS = ("kafka-python", "aiokafka", "confluent-kafka")
DIST_INFO = f"kwire-{kwire.__version__}.dist-info"

IMPORT_SCRIPT = """\
import broker, coordinator, pipeline
import kwire, kwire.testing, kwire.wire, kwire.cli.main, kwire.broker.net.serve
print(kwire.__file__)
print(broker.WHOSE, coordinator.WHOSE, pipeline.WHOSE)
"""

SUITE = """\
import asyncio
import sys

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EARLIEST = {"auto_offset_reset": "earliest"}

def test_it(kwire, kwire_topic):
    kwire.produce(kwire_topic, "x")
    assert len(kwire.records(kwire_topic)) == 1
    assert "site-packages" in sys.modules["kwire"].__file__

def test_kafka_python(kwire, kwire_topic):
    from kafka import KafkaConsumer, KafkaProducer
    producer = KafkaProducer(bootstrap_servers=kwire.bootstrap_servers)
    producer.send(kwire_topic, b"first").get(10)
    producer.close()
    consumer = KafkaConsumer(kwire_topic, bootstrap_servers=kwire.bootstrap_servers, **EARLIEST)
    assert next(consumer).value == b"first"
    consumer.close()

def test_aiokafka(kwire, kwire_topic):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    async def orders():
        async with AIOKafkaProducer(bootstrap_servers=kwire.bootstrap_servers) as producer:
            await producer.send_and_wait(kwire_topic, b"first")
        servers = kwire.bootstrap_servers
        async with AIOKafkaConsumer(kwire_topic, bootstrap_servers=servers, **EARLIEST) as consumer:
            assert (await consumer.getone()).value == b"first"
    asyncio.run(orders())

def test_confluent_kafka(kwire, kwire_topic, kwire_group):
    from confluent_kafka import Consumer, Producer
    producer = Producer({"bootstrap.servers": kwire.bootstrap_servers})
    producer.produce(kwire_topic, b"first")
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": kwire.bootstrap_servers, "group.id": kwire_group,
                         "auto.offset.reset": "earliest"})
    consumer.subscribe([kwire_topic])
    assert consumer.poll(10).value() == b"first"
    consumer.close()
"""


MUSL = """\
import packaging.tags
packaging.tags.platform_tags = lambda: iter(["musllinux_1_2_x86_64", "musllinux_1_1_x86_64", "linux_x86_64"])
"""
"""A program's first lines, which make the build take this machine for one with musl."""


def build(backend: str, source: Path, directory: Path, first_lines: str = "", **variables: str) -> Path:
    """Build a source tree with the build backend and return the result."""
    program = f"import hatchling.build, sys; print(hatchling.build.{backend}(sys.argv[1]))"
    ran = subprocess.run(
        [sys.executable, "-c", first_lines + program, directory],
        cwd=source,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return directory / ran.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked sdist."""
    directory = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("build_sdist", ROOT, directory)) as archive:
        archive.extractall(directory, filter="data")
    return directory / f"kwire-{kwire.__version__}"


@pytest.fixture(scope="module")
def installed(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a site directory with only the wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    with ZipFile(build("build_wheel", sdist, directory)) as wheel:
        wheel.extractall(directory / "site-packages")
    return directory / "site-packages"


def requirement_closure(*requirements: str) -> set[str]:
    """Return the requirements with all their declared dependencies."""
    found: set[str] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        one = left.pop()
        if one.name in found:
            continue
        found.add(one.name)
        for text in distribution(one.name).requires or ():
            needed, extras = Requirement(text), one.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(needed)
    return found


class EmptyEnvironment:
    """A virtual environment with only a wheel and its declared dependencies."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        venv.create(directory, symlinks=True)
        self.bin = directory / "bin"
        [self._packages] = directory.glob("lib/*/site-packages")
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
        self.install(*DEPENDENCIES)

    def install(self, *requirements: str) -> None:
        """Install requirements from the packages of the test environment, without downloads."""
        for name in requirement_closure(*requirements):
            for file in distribution(name).files or ():
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    (self._packages / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file.locate(), self._packages / file)

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment, isolated from the test environment."""
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))
        }


def files_below(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and not {"__pycache__", "target"} & set(path.parts[len(directory.parts) :])
    }


def test_sdist_has_exactly_the_files_of_the_build(sdist: Path) -> None:
    ours = {"kwire", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE"}
    assert {path.name for path in sdist.iterdir()} == {*ours, "PKG-INFO", ".gitignore"}


def test_wheel_has_one_complete_package(installed: Path) -> None:
    assert {path.name for path in installed.iterdir()} == {"kwire", DIST_INFO}
    found = files_below(installed / "kwire")
    library, source = "wire/_record_scan.abi3.so", "wire/_record_scan.c"  # tests/test_installation.py
    assert found - {library} == files_below(ROOT / "kwire") - {library, source}
    assert found >= {
        "py.typed",
        "pipeline/log4j2.properties",
        "pipeline/pom.xml",
        "pipeline/report/templates/page.html",
    }


def requirements(metadata: Message) -> list[str]:
    """Return the requirements without an extra."""
    return [text for text in metadata.get_all("Requires-Dist", ()) if "extra ==" not in text]


def wheel_metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"{DIST_INFO}/METADATA"))


def test_wheel_metadata(installed: Path) -> None:
    entry_points = (installed / DIST_INFO / "entry_points.txt").read_text()
    assert "[console_scripts]\nkwire = kwire.cli.main:main\n" in entry_points
    assert "[pytest11]\nkwire = kwire.testing.plugin\n" in entry_points
    metadata = message_from_bytes((installed / DIST_INFO / "METADATA").read_bytes())
    assert sorted(requirements(metadata)) == sorted(DEPENDENCIES)
    assert metadata["Version"] == kwire.__version__
    assert metadata["Author"] == "kwire contributors"
    assert "Typing :: Typed" in metadata.get_all("Classifier", ())
    assert {"console", "regex", "spark"} <= set(metadata.get_all("Provides-Extra", ()))
    # Nothing here names an address that does not exist yet (docs/releasing.md).
    assert "://" not in str(metadata).partition("\n\n")[0]


def test_readme_has_the_number_of_packages() -> None:
    packages = {"kwire", *requirement_closure(*DEPENDENCIES)}
    assert f"{len(packages)} packages with all dependencies" in (ROOT / "README.md").read_text()


def test_wheel_for_musl_does_not_require_re2(sdist: Path, tmp_path: Path) -> None:
    """The sdist was built on glibc. On musl, an installer builds a wheel from it."""
    wheel = build("build_wheel", sdist, tmp_path, MUSL)
    found = wheel_metadata(wheel)
    kept = [one for one in DEPENDENCIES if not one.startswith("google-re2")]
    assert sorted(requirements(found)) == sorted(kept)
    assert len(kept) == len(DEPENDENCIES) - 1
    [regex] = EXTRAS["regex"]
    assert f"{regex}; extra == 'regex'" in found.get_all("Requires-Dist", ())


def test_installers_do_not_take_the_dependencies_from_the_sdist(sdist: Path) -> None:
    """From metadata version 2.2 on, an installer on musl could use them without building the sdist."""
    assert message_from_bytes((sdist / "PKG-INFO").read_bytes())["Metadata-Version"] == "2.1"


def test_wheel_without_native_code_on_request(sdist: Path, tmp_path: Path) -> None:
    wheel = build("build_wheel", sdist, tmp_path, KWIRE_PURE_PYTHON="1")
    assert wheel.name == f"kwire-{kwire.__version__}-py3-none-any.whl"
    assert sorted(requirements(wheel_metadata(wheel))) == sorted(DEPENDENCIES)


def test_installed_wheel_provides_pytest_fixtures(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_local_packages_with_the_same_names_are_unaffected(installed: Path, tmp_path: Path) -> None:
    for name in THEIRS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (tmp_path / "look.py").write_text(IMPORT_SCRIPT)
    output = []
    for arguments in (["-m", "kwire", "--version"], ["look.py"]):
        ran = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        output += ran.stdout.splitlines()
    ours = str(installed / "kwire" / "__init__.py")
    assert output[0].startswith(f"kwire {kwire.__version__} (")
    assert output[1:] == [ours, "theirs theirs theirs"]


def test_wheel_works_with_only_its_declared_dependencies(sdist: Path, tmp_path: Path) -> None:
    empty = EmptyEnvironment(tmp_path / "env", build("build_wheel", sdist, tmp_path))
    version = empty.run("kwire", "--version", cwd=tmp_path).stdout
    assert version.startswith(f"kwire {kwire.__version__} (record validation: ")
    lacking = empty.run("kwire", "serve", "--console", cwd=tmp_path)
    assert (lacking.returncode, lacking.stderr.count("\n")) == (1, 1)
    assert "pip install 'kwire[console]'" in lacking.stderr
    empty.install(*EXTRAS["console"], "pytest", *CLIENTS)
    (tmp_path / "test_it.py").write_text(SUITE)
    ran = empty.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with subprocess.Popen(
        [
            empty.bin / "kwire",
            "serve",
            "--console",
            "--http",
            "0",
            "--set",
            "listeners=PLAINTEXT://127.0.0.1:0",
        ],
        cwd=tmp_path,
        env=empty.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        assert broker.stdout is not None
        try:
            found = re.search(r"http://\S+", broker.stdout.readline() + broker.stdout.readline())
            assert found
            with urlopen(found[0], timeout=60) as page:
                assert "<h1>Topics</h1>" in page.read().decode()
        finally:
            broker.terminate()
        assert broker.wait(30) == 0
