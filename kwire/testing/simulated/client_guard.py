"""Refusal of Kafka clients that cannot work in a simulated cluster, or that would make its runs differ.

kafka-python and confluent-kafka have sockets and threads of their own. The names of simulated brokers do not
exist for them, so a program would wait for a connection in real time, or lose what it produces. A program may
use all other sockets: only clients that name a simulated broker are refused.

Three places are guarded while a cluster is in use:

- The constructors of kafka-python and confluent-kafka check the addresses in their configs. The classes of
  confluent-kafka are written in C and immutable, so modules refer to checking subclasses meanwhile.
- `socket.getaddrinfo` refuses the names of simulated brokers, for all other clients in Python.
- An event loop reports the protocols that connect, so that old versions of aiokafka are refused.

A client in another thread, or a retry loop, might hide the error. So the guard also records it, and `run` and
`check` of the cluster raise it.
"""

from __future__ import annotations

import builtins
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from types import ModuleType
from typing import Any, Final

SUPPORTED_CLIENTS: Final = (
    "only asyncio connections that are opened within `run` reach this cluster, such as those of aiokafka; "
    "kafka-python and confluent-kafka have sockets and threads of their own"
)
MIN_AIOKAFKA: Final = 0, 13
"""The oldest version of aiokafka that repeats a run.

Older versions request metadata without racks, and keep brokers in a set. Before Python 3.12, the hash of the
missing rack, None, is a memory address, so the order of the set differs in each process.
"""
CLASSES: Final = {
    "kafka.producer.kafka": "KafkaProducer",
    "kafka.consumer.group": "KafkaConsumer",
    "kafka.admin.client": "KafkaAdminClient",
    "confluent_kafka.admin": "AdminClient",
}
"""Clients that are classes of Python, by module."""
IMMUTABLE_CLASSES: Final = "Producer", "Consumer", "ShareConsumer"
"""Clients of `confluent_kafka` that are written in C."""
ADDRESS_KEYS: Final = frozenset({"bootstrap_servers", "bootstrap.servers", "metadata.broker.list"})
INTERRUPT_AFTER_S: Final = 3.0
"""The real time after which an error of another thread interrupts a program that blocks its event loop."""

_HOST = re.compile(r"(?:\w+://)?([^:,/\s]+)(?::\d+)?")


class UnsupportedClient(BaseException):
    """A client that cannot be used in a simulated cluster.

    This is not a subclass of Exception: a program that retries after every Exception would retry forever.
    """


class _Refused:
    """The class of a client that was refused, since `__del__` of its own class expects all attributes."""


class ClientGuard:
    """The guard of one cluster. `install` is called in the thread that uses the cluster."""

    def __init__(self, hosts: Collection[str]) -> None:
        """Create a guard for the brokers with these host names."""
        self._hosts = frozenset(hosts)
        self._thread = threading.get_ident()
        self._error: UnsupportedClient | None = None
        self._lock = threading.Lock()
        self._is_interruptible = self._is_interrupted = self._is_installed = False
        self._checking: dict[type, type] = {}
        """The checking subclass of each immutable class."""
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        """Replaced attributes: the owner, the name, the original value or None, and the new value."""

    def install(self) -> None:
        """Guard the clients that are imported now or later, until `remove`."""
        self._thread = threading.get_ident()
        self._is_installed = True
        self._guard_name_lookups()
        self._guard_classes()
        self._replace_in_modules(self._checking)
        self._guard_imports()

    def remove(self) -> None:
        """Restore everything that `install` has changed."""
        self._is_installed = False
        for owner, name, original, new in reversed(self._replaced):
            if vars(owner).get(name) is not new:
                continue  # another program has replaced it since
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._replaced.clear()
        self._replace_in_modules({new: original for original, new in self._checking.items()})
        self._checking.clear()

    def raise_recorded(self) -> None:
        """Raise the error of a client, unless it has been raised here before."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def check_protocol(self, protocol_factory: Callable[..., object]) -> None:
        """Raise UnsupportedClient if a connection belongs to a version of aiokafka that is too old."""
        module: str = getattr(protocol_factory, "__module__", None) or ""
        if module.partition(".")[0] != "aiokafka":
            return
        version: str = sys.modules["aiokafka"].__version__
        found = re.match(r"(\d+)\.(\d+)", version)
        if found and (int(found[1]), int(found[2])) < MIN_AIOKAFKA:
            self._refuse(
                f"aiokafka {version} does not repeat a run for the same seed: use aiokafka "
                f"{'.'.join(map(str, MIN_AIOKAFKA))} or later"
            )

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let an error of another thread interrupt the main thread, which may be waiting for that thread.

        The guard interrupts by SIGINT, the signal that also interrupts a program that waits for a lock.
        """
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or previous is None:
            yield
            return

        def on_interrupt(number: int, frame: Any) -> None:
            if self._is_interrupted:
                self._is_interrupted = False
                self.raise_recorded()
            elif callable(previous):
                previous(number, frame)

        signal.signal(signal.SIGINT, on_interrupt)
        self._is_interruptible = True
        try:
            yield
        finally:
            try:
                with self._lock:
                    self._is_interruptible = False
            finally:
                self._is_interruptible = False
                # This calls the current handler first if a signal is pending.
                signal.signal(signal.SIGINT, previous)

    def _refuse(self, text: str) -> None:
        error = self._error = UnsupportedClient(text)
        if threading.get_ident() != self._thread:
            timer = threading.Timer(INTERRUPT_AFTER_S, self._interrupt)
            timer.daemon = True
            timer.start()
        raise error

    def _interrupt(self) -> None:
        with self._lock:
            if self._error is not None and self._is_interruptible:
                self._is_interrupted = True
                signal.pthread_kill(self._thread, signal.SIGINT)

    def _check_config(self, client: str, arguments: tuple[object, ...], named: Mapping[str, object]) -> None:
        """Raise UnsupportedClient if the config in a constructor's arguments names a simulated broker."""
        if not self._is_installed:
            return
        for config in (named, named.get("conf"), *arguments):
            addresses = [config.get(key, ()) for key in ADDRESS_KEYS] if isinstance(config, Mapping) else []
            for servers in addresses:
                for server in servers if isinstance(servers, list | tuple | set) else [servers]:
                    if not self._hosts.isdisjoint(_HOST.findall(str(server))):
                        self._refuse(f"{client} cannot connect to {server}: {SUPPORTED_CLIENTS}")

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name), new))
        setattr(owner, name, new)

    def _guard_name_lookups(self) -> None:
        resolve = socket.getaddrinfo

        @wraps(resolve)
        def getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
            name = host.decode("latin-1") if isinstance(host, bytes) else host
            if name in self._hosts:
                self._refuse(f"sockets cannot connect to {name}: {SUPPORTED_CLIENTS}")
            return resolve(host, *arguments, **named)

        self._replace(socket, "getaddrinfo", getaddrinfo)

    def _guard_imports(self) -> None:
        real_import = builtins.__import__

        @wraps(real_import)
        def import_(name: str, *arguments: Any, **named: Any) -> Any:
            module = real_import(name, *arguments, **named)
            if name.partition(".")[0] in ("kafka", "confluent_kafka"):
                self._guard_classes()
                self._replace_in(sys.modules.get("confluent_kafka"), self._checking)
            return module

        self._replace(builtins, "__import__", import_)

    def _guard_classes(self) -> None:
        for module, name in CLASSES.items():
            self._guard_class(getattr(sys.modules.get(module), name, None), name)
        for name in IMMUTABLE_CLASSES:
            original = getattr(sys.modules.get("confluent_kafka.cimpl"), name, None)
            if original is None:
                continue
            if original not in self._checking:
                self._checking[original] = type(name, (original,), {"__module__": original.__module__})
            for subclass in original.__subclasses__():
                self._guard_class(subclass, subclass.__name__)

    def _guard_class(self, guarded: Any, name: str) -> None:
        """Let the constructor of a class check its config, unless it does so already."""
        if guarded is None or any(owner is guarded for owner, *_ in self._replaced):
            return
        construct = guarded.__init__

        @wraps(construct)
        def __init__(client: Any, *arguments: Any, **named: Any) -> None:
            try:
                self._check_config(name, arguments, named)
            except UnsupportedClient:
                with suppress(TypeError):  # raised for classes that are based on C, which have no finalizer
                    client.__class__ = _Refused
                raise
            construct(client, *arguments, **named)

        self._replace(guarded, "__init__", __init__)

    def _replace_in_modules(self, new: Mapping[type, type]) -> None:
        """Replace classes wherever a module refers to them, except in the package of confluent-kafka."""
        if new:
            for name, module in list(sys.modules.items()):
                if not name.startswith("confluent_kafka."):
                    self._replace_in(module, new)

    @staticmethod
    def _replace_in(module: object, new: Mapping[type, type]) -> None:
        if not issubclass(type(module), ModuleType):
            return
        names = object.__getattribute__(module, "__dict__")  # does not load a lazy module
        for name, value in list(names.items()):
            for one, other in new.items():
                if value is one:
                    names[name] = other
