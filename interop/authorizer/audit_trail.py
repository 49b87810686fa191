"""The lines of the audit log that a broker writes for the requests of a client."""

from __future__ import annotations

import re
from typing import Final

from interop.brokers import ApacheKafka, Broker

LOGGER: Final = "kafka.authorizer.logger"
LINE: Final = re.compile(
    rf"(?P<level>TRACE|DEBUG|INFO) {LOGGER}\b.*?(?P<text>Principal = (?P<principal>\S+) .*)"
)
TEXT: Final = re.compile(
    r"Principal = (\S+) is (Allowed|Denied) operation = (\w+) from host = (\S+) on resource = (.*) "
    r"for request = (\w+) with resourceRefCount = (\d+) based on rule (.*)"
)
TOKEN_ID: Final = re.compile(r"(DelegationToken:LITERAL:)[\w-]{22}\b")
NO_NAME: Final = " Topic:LITERAL: x"
"""Apache Kafka authorizes OffsetCommit and OffsetFetch for an unknown topic id with an empty name."""
BROKER_LOGGER: Final = 8


class TracingKafka(ApacheKafka):
    """Apache Kafka that writes all lines of the audit log."""

    def command(self) -> list[str]:
        java, *arguments = super().command()
        return [java, f"-Dorg.slf4j.simpleLogger.log.{LOGGER}=trace", *arguments]


class AuditTrail:
    """The audit log of a broker from some position on."""

    def __init__(self, broker: Broker) -> None:
        self._path = broker.log_path
        self._position = 0

    def skip(self) -> None:
        """Ignore all lines that are written so far."""
        self._position = self._path.stat().st_size

    def read(self, principal: str, api: str) -> list[str]:
        """Return the level and the text of each new line about a principal's request, in sorted order."""
        with self._path.open("rb") as log:
            log.seek(self._position)
            data = log.read()
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        lines = LINE.finditer(TOKEN_ID.sub(r"\1<token>", data.decode()))
        texts = [f"{one['level']} {_short(one['text'])}" for one in lines if one["principal"] == principal]
        return sorted(text for text in texts if text.split()[1] == api and NO_NAME not in text)


def _short(text: str) -> str:
    """Return the fields of a line whose text is Apache Kafka's, and others as they are."""
    found = TEXT.fullmatch(text)
    if found is None:
        return text
    principal, result, operation, host, resource, request, count, rule = found.groups()
    return f"{request} {result} {operation} {resource} x{count}, {principal}@{host}, {rule}"
