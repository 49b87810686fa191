"""Containers: processes with their own root, network and mounts, reached at their published ports.

As with a container engine, each has an address on a bridge, resolves the others by name, and is reached at
published ports in the caller's network. The root is read-only except /tmp, /dev/shm and the volumes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.docker.compose import Service
from tests.docker.image import Image, ids, mount

NEW_MOUNTS, NEW_NETWORK = 0x0002_0000, 0x4000_0000
NETWORK = "10.231.47"
FIRST_NUMBER = 2
ERRAND_SECONDS = 60
CHUNK_BYTES = 65_536


def make_network() -> None:
    """Create the bridge and the host's address in the caller's network namespace."""
    for command in (
        "link set lo up",
        "link add engine type bridge",
        f"addr add {NETWORK}.1/24 dev engine",
        "link set engine up",
    ):
        subprocess.run(["ip", *command.split()], check=True)


class Container:
    """One running service."""

    def __init__(
        self, service: Service, image: Image, number: int, home: Path, volumes: Path, base: Path
    ) -> None:
        self.service = service
        self.address = f"{NETWORK}.{number}"
        self._image = image
        self._number = number
        self._home = home
        self._volumes = volumes
        self._base = base
        self.environment = {**image.environment, "HOSTNAME": service.hostname, **service.environment}
        user = service.user
        self.uid, self.gid = (image.uid, image.gid) if user is None else ids(image.root, user)
        self._listeners: list[socket.socket] = []

    def start(self, hosts: str) -> None:
        """Start the process and forward the published ports to it."""
        self._home.mkdir()
        (self._home / "hosts").write_text(hosts)
        self._run()
        for published in self.service.published:
            self._listeners.append(forward(published.port, (self.address, published.container_port)))

    def kill_and_restart(self) -> None:
        """Kill and restart the container; data outside of volumes is lost."""
        self.process.kill()
        self.process.wait()
        self._run()
        self.wait_until_serving()

    def _run(self) -> None:
        self.log = self._home / "log"
        plan = {
            "root": str(self._image.root),
            "hosts": str(self._home / "hosts"),
            "volumes": self._mounted(),
            "address": f"{self.address}/24",
            "uid": self.uid,
            "gid": self.gid,
            "command": self.service.command or self._image.command,
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.docker.container", json.dumps(plan)],
                env={**os.environ, "CONTAINER": json.dumps(self.environment)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        assert self.process.stdout.readline() == "unshared\n", self.stderr_text()
        link = f"port{self._number}"
        # The interface of the previous process is removed with its network, which may take the kernel some
        # time.
        subprocess.run(["ip", "link", "delete", link], check=False, stderr=subprocess.DEVNULL)
        ip = f"link add {link} type veth peer name eth0 netns {self.process.pid}"
        subprocess.run(["ip", *ip.split()], check=True)
        subprocess.run(["ip", "link", "set", link, "master", "engine", "up"], check=True)
        self.process.stdin.close()

    def wait_until_serving(self) -> None:
        """Wait until the broker serves clients. Raise AssertionError if it exits before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("kwire serves on "):
                return
        raise AssertionError(f"{self.service.name}: {self.stderr_text()}")

    def stderr_text(self) -> str:
        """Return its standard error so far."""
        return self.log.read_text()

    def check_health(self) -> int:
        """Run the health check of the image in the container and return its exit status."""
        into = ["nsenter", f"--target={self.process.pid}", "--mount", "--net", "--root", "--wd"]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        own = [f"--setuid={self.uid}", f"--setgid={self.gid}", "/usr/bin/env", "-i", *variables]
        return subprocess.run([*into, *own, *self._image.health], check=False, timeout=60).returncode

    def host_path(self, target: str) -> Path:
        """Return the path on the host of a path in a volume. Raise KeyError."""
        return Path({where: source for source, where in self._mounted()}[target])

    def stop(self, seconds: float) -> int:
        """Stop the container as an engine does and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def remove(self) -> None:
        self.process.kill()
        self.process.wait()
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, which close does not
            listener.close()

    def _mounted(self) -> list[tuple[str, str]]:
        """Return sources and targets: the service's, and a new one for each other volume of the image."""
        pairs = []
        for volume in self.service.volumes:
            if volume.source.startswith("."):
                source = (self._base / volume.source).resolve()
                if not source.exists():  # an engine creates it
                    source = self._home / Path(volume.source).name
                    source.mkdir()
            else:
                source = self._named(self._volumes / volume.source, volume.target)
            pairs.append((str(source), volume.target))
        targets = {target for _, target in pairs}
        for number, target in enumerate(self._image.volumes):
            if target not in targets:
                pairs.append((str(self._named(self._home / f"volume{number}", target)), target))
        return pairs

    def _named(self, source: Path, target: str) -> Path:
        """Return a named volume; a new one gets owner and mode of the directory in the image."""
        if not source.exists():
            source.mkdir()
            there = (self._image.root / target.lstrip("/")).stat()
            os.chown(source, there.st_uid, there.st_gid)
            source.chmod(there.st_mode & 0o7777)
        return source


@contextlib.contextmanager
def running(
    services: Sequence[Service], image: Image, home: Path, volumes: Path, base: Path
) -> Iterator[list[Container]]:
    """Run the services of a compose file at `base`, each in a container, and yield the nodes.

    The nodes serve clients, and the one-off kwire commands have finished. Services of other images are
    skipped.
    """
    home.mkdir()
    containers = [
        Container(service, image, number, home / service.name, volumes, base)
        for number, service in enumerate(services, FIRST_NUMBER)
    ]
    nodes = [one for one in containers if one.service.is_node]
    hosts = "127.0.0.1 localhost\n" + "".join(
        f"{one.address} {one.service.name} {one.service.hostname}\n" for one in containers
    )
    started: list[Container] = []
    try:
        for container in nodes:
            container.start(hosts)
            started.append(container)
        for container in nodes:
            container.wait_until_serving()
        for container in containers:
            if container.service.is_command:
                container.start(hosts)
                started.append(container)
                assert container.process.wait(ERRAND_SECONDS) == 0, container.stderr_text()
        yield nodes
    finally:
        for container in started:
            container.remove()


def forward(port: int, target: tuple[str, int]) -> socket.socket:
    """Forward a port of the host to a container until the returned socket is closed."""
    listener = socket.create_server(("127.0.0.1", port))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection(target, 10)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=(source, sink), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def become(plan: dict[str, Any]) -> None:
    """Turn this process into that of a container: wait for its network, then enter its root."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS | NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare")
    print("unshared", flush=True)
    sys.stdin.read()
    for command in ("link set lo up", f"addr add {plan['address']} dev eth0", "link set eth0 up"):
        subprocess.run(["ip", *command.split()], check=True)
    root = Path(plan["root"])
    mount("--make-rprivate", "/")
    mount("-o", "remount,ro", root)
    for name in ("tmp", "dev/shm"):
        mount("-t", "tmpfs", "-o", "mode=1777", "own", root / name)
    mount("--bind", plan["hosts"], root / "etc/hosts")
    for source, target in plan["volumes"]:
        place = root / target.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        mount("--bind", source, place)
    environment = json.loads(os.environ["CONTAINER"])
    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setgid(plan["gid"])
    os.setuid(plan["uid"])
    os.execvpe(plan["command"][0], plan["command"], environment)


if __name__ == "__main__":
    become(json.loads(sys.argv[1]))
