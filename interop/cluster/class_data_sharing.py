"""A class data sharing archive, which halves the start time of three Kafka JVMs on two cores."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from interop.brokers import ApacheKafka
from interop.reference import NODE_SUFFIX, TARGET, alone_in_target, node_jars

ARCHIVE = TARGET / f"kafka{NODE_SUFFIX}.jsa"
UNFINISHED = ARCHIVE.with_suffix(".unfinished")
"""The file that the JVM writes. Only a complete archive gets the name of `ARCHIVE`."""


class _Archiving(ApacheKafka):
    """A broker that writes an archive of its loaded classes when it stops."""

    def jars(self) -> Path:
        return node_jars()

    def command(self) -> list[str]:
        command = super().java("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        return [*command, f"-XX:ArchiveClassesAtExit={UNFINISHED}", "kafka.Kafka", str(self.properties_path)]


@cache
def shared_class_options() -> tuple[str, ...]:
    """Return the JVM options that use the archive. The first call creates the archive."""
    node_jars()
    with alone_in_target():
        if not ARCHIVE.exists():
            broker = _Archiving()
            broker.start()
            broker.stop()
            broker.discard()
            UNFINISHED.rename(ARCHIVE)
    return (f"-XX:SharedArchiveFile={ARCHIVE}",)
