"""An image, built by the steps of the Dockerfile in a separate root.

The base image of FROM is not available. Instead, the root has the libraries of this machine (/usr, read-only)
and its Python, as a virtual environment at /usr/local with pip only. The steps after FROM run unchanged,
without a network: pip finds wheels that are made from the packages installed here, in the versions of the
lock file.

Building needs root and a separate mount namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tests.docker.dockerfile import Context, Step, read_steps
from tests.docker.wheels import (
    SITE_PACKAGES,
    make_wheel,
    pip_of_this_python,
    rewrite_lock_file,
    with_dependencies,
)

TOP = Path(__file__).resolve().parents[2]
DOCKERFILE = TOP / "docker/Dockerfile"
STEP_TIMEOUT_SECONDS = 300

PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
DIRECTORIES = ("dev", "etc", "home", "mnt", "proc", "run", "tmp", "usr", "var/lib", "wheels")
OF_THE_MACHINE = ("etc/ld.so.cache", "etc/login.defs", "etc/default/useradd", "etc/nsswitch.conf")
DEVICES = ("null", "zero", "random", "urandom")
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/shadow": "root:*:1::::::\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "/wheels",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
BUILD_REQUIREMENTS = (Requirement("hatchling"), Requirement("setuptools"))


class Image(NamedTuple):
    """A root and the settings of the Dockerfile to run it."""

    root: Path
    environment: dict[str, str]
    uid: int
    gid: int
    volumes: list[str]
    health: list[str]
    command: list[str]


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def make_root(root: Path) -> None:
    """Create the root that replaces the base image of FROM."""
    mount("-t", "tmpfs", "-o", "mode=755", "root", root)
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "root").mkdir()
    (root / "dev/shm").mkdir()
    bind(root, Path("/usr"))
    for name in ("bin", "sbin", "lib", "lib64"):
        origin = Path("/", name)
        if origin.is_symlink():
            (root / name).symlink_to(origin.readlink())
        elif origin.exists():
            bind(root, origin)
    mount("-t", "tmpfs", "-o", "mode=755", "local", root / "usr/local")
    prefix = Path(sys.base_prefix).resolve()
    if not prefix.is_relative_to("/usr") or prefix.is_relative_to("/usr/local"):
        bind(root, prefix)
    for name in DEVICES:
        (root / "dev" / name).touch()
        mount("--bind", Path("/dev", name), root / "dev" / name)
    mount("-t", "proc", "proc", root / "proc")
    for name, text in FILES.items():
        (root / name).write_text(text)
    for name in OF_THE_MACHINE:
        if Path("/", name).exists():
            (root / name).parent.mkdir(exist_ok=True)
            shutil.copy(Path("/", name), root / name)
    python = Path(prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    subprocess.run([python, "-m", "venv", "--without-pip", root / "usr/local"], check=True)
    pip_of_this_python(root / "usr/local" / SITE_PACKAGES, root / "usr/local/bin")


def bind(root: Path, path: Path) -> None:
    """Bind-mount a directory of this machine at the same path, read-only."""
    target = root / path.relative_to("/")
    target.mkdir(parents=True, exist_ok=True)
    mount("--bind", path, target)
    mount("-o", "remount,bind,ro", target)


def build(root: Path) -> Image:
    """Build the image. Raise CalledProcessError for a failed step, FileNotFoundError for a COPY.

    Only the last stage has its root in `root`. The stages before it have roots beside it.
    """
    context = Context(TOP, DOCKERFILE.with_name("Dockerfile.dockerignore").read_text())
    steps = read_steps(DOCKERFILE.read_text())
    last = max(number for number, step in enumerate(steps) if step.instruction == "FROM")
    stages: dict[str, Path] = {}
    image = Image(root, {"PATH": PATH}, 0, 0, [], [], [])
    for number, step in enumerate(steps):
        if step.instruction == "FROM":
            name = step.words[-1]
            stages[name] = root if number == last else root.with_name(f"{root.name}-{name}")
            stages[name].mkdir(exist_ok=True)
            image = image._replace(root=stages[name])
        image = _apply_step(image, step, context, stages)
    shutil.rmtree(root / "wheels")
    return image


def _apply_step(image: Image, step: Step, context: Context, stages: dict[str, Path]) -> Image:
    match step.instruction:
        case "FROM":
            make_root(image.root)
            for requirement in BUILD_REQUIREMENTS:
                for package in with_dependencies(requirement):
                    make_wheel(package, image.root / "wheels")
        case "RUN":
            subprocess.run(
                ["chroot", f"--userspec={image.uid}:{image.gid}", image.root, "/bin/sh", "-c", step.text],
                env={**image.environment, **OFFLINE},
                check=True,
                timeout=STEP_TIMEOUT_SECONDS,
                stdout=subprocess.DEVNULL,
            )
        case "COPY":
            if "from" in step.options:
                source, target = step.words
                origin = stages[step.options["from"]] / source.lstrip("/")
                shutil.copytree(origin, image.root / target.lstrip("/"), dirs_exist_ok=True)
            else:
                _copy(image, step, context)
        case "ENV":
            return image._replace(
                environment=image.environment | dict(word.split("=", 1) for word in step.words)
            )
        case "USER":
            uid, gid = ids(image.root, step.text)
            return image._replace(uid=uid, gid=gid)
        case "VOLUME":
            return image._replace(volumes=step.words)
        case "HEALTHCHECK":
            return image._replace(health=Step("CMD", {}, step.text.removeprefix("CMD ")).words)
        case "CMD":
            return image._replace(command=step.words)
    return image


def _copy(image: Image, step: Step, context: Context) -> None:
    *sources, target = step.words
    directory = image.root / target.lstrip("/")
    directory.parent.mkdir(parents=True, exist_ok=True)
    if target.endswith("/"):
        directory.mkdir(exist_ok=True)
    uid, gid = ids(image.root, step.options.get("chown", "0:0"))
    for source in sources:
        path = context.find(source)
        if path.is_dir():
            shutil.copytree(
                path,
                directory,
                dirs_exist_ok=True,
                ignore=lambda folder, names: [
                    name
                    for name in names
                    if context.excludes(os.path.relpath(os.path.join(folder, name), context.top))
                ],
            )
            continue
        copied = Path(shutil.copy(path, directory))
        if path.suffix == ".lock":
            copied.write_text(rewrite_lock_file(path.read_text(), image.root / "wheels"))
        os.chown(copied, uid, gid)


def ids(root: Path, text: str) -> tuple[int, int]:
    """Return the ids of USER or USER:GROUP from the files in the root. Raise KeyError."""
    users = {line.split(":")[0]: line.split(":") for line in (root / "etc/passwd").read_text().splitlines()}
    groups = {line.split(":")[0]: line.split(":") for line in (root / "etc/group").read_text().splitlines()}
    user, _, group = text.partition(":")
    uid = int(user) if user.isdigit() else int(users[user][2])
    own = int(users[user][3]) if user in users else 0
    return uid, own if not group else int(group) if group.isdigit() else int(groups[group][2])
