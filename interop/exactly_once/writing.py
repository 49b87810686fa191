"""A process with transactional producers of one library, one thread per transactional id.

``python -m interop.exactly_once.writing LIBRARY BOOTSTRAP TOPIC PARTITIONS IDS LEDGER SEED``. The process
ends when its standard input is closed. The producers commit and abort transactions. Sometimes a producer
vanishes during a transaction, is fenced while it still writes, or leaves a transaction open until it times
out.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from pathlib import Path

from interop.exactly_once.clients import WRITERS, ClientFailed, Writer
from interop.exactly_once.ledger import Ledger, Mark, Outcome, encode_value

TIMEOUT_MS = 4000
"""The transaction timeout, short enough that transactions time out during the load."""
END_S = 20.0
PADDING_BYTES = 400


class TransactionalProducer:
    """The successive producers of one transactional id."""

    def __init__(
        self,
        library: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        transactional_id: str,
        ledger: Ledger,
        rng: random.Random,
        ended: threading.Event,
    ) -> None:
        self._library = library
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._id = transactional_id
        self._ledger = ledger
        self._rng = rng
        self._ended = ended
        self._number = 0
        self._dropped: list[Writer] = []

    def _make(self, transactional_id: str) -> Writer:
        return WRITERS[self._library](self._bootstrap, self._topic, transactional_id, TIMEOUT_MS)

    def run(self) -> None:
        writer = self._successor()
        while not self._ended.is_set():
            chance = self._rng.random()
            if chance < 0.03:
                writer = self._vanish(writer)
            elif chance < 0.07:
                writer = self._replace(writer)
            elif chance < 0.09 and self._library == "confluent":
                self._leave_open()
            else:
                writer = self._transaction(writer)
            if self._rng.random() < 0.3:
                time.sleep(self._rng.uniform(0, 0.05))

    def _successor(self) -> Writer:
        """Start a new producer for the transactional id, which fences the previous producer."""
        while True:
            writer = self._make(self._id)
            try:
                writer.init()
                return writer
            except ClientFailed:
                self._drop(writer)

    def _drop(self, writer: Writer) -> None:
        # A slow close must not block the load, so a thread closes the producer. Keep a reference for a while.
        threading.Thread(target=writer.drop, daemon=True).start()
        self._dropped = [*self._dropped[-3:], writer]

    def _begin(self, name: str) -> tuple[int, list[Mark]]:
        """Log the next transaction of the id `name`. Return its number and its records in sending order."""
        self._number += 1
        counts = {
            partition: self._rng.randint(1, 8)
            for partition in self._rng.sample(range(self._partitions), self._rng.randint(1, 3))
        }
        self._ledger.begin(name, self._number, counts)
        marks = [
            Mark(name, self._number, partition, index)
            for index in range(max(counts.values()))
            for partition, count in counts.items()
            if index < count
        ]
        return self._number, marks

    def _send(self, writer: Writer, marks: list[Mark]) -> None:
        for mark in marks:
            writer.send(mark.partition, encode_value(mark, "x" * self._rng.randrange(PADDING_BYTES)))
            if self._rng.random() < 0.1:
                writer.flush()

    def _transaction(self, writer: Writer) -> Writer:
        """Run one transaction. Return the producer for the next transaction: `writer` or a new one."""
        number, marks = self._begin(self._id)
        committing = False
        try:
            writer.begin()
            self._send(writer, marks)
            if self._rng.random() < 0.25:
                writer.abort()
                self._ledger.end(self._id, number, Outcome.ABORTED)
                return writer
            committing = True
            writer.commit()
            self._ledger.end(self._id, number, Outcome.COMMITTED)
            return writer
        except ClientFailed as error:
            return self._give_up(writer, number, str(error), committing=committing)

    def _give_up(self, writer: Writer, number: int, why: str, *, committing: bool) -> Writer:
        try:
            writer.abort()
            self._ledger.end(self._id, number, Outcome.ABORTED, why)
            return writer
        except ClientFailed as error:
            # If no commit was requested, the transaction must be aborted, even if the abort request got no
            # response.
            outcome = Outcome.UNKNOWN if committing else Outcome.ABORTED
            self._ledger.end(self._id, number, outcome, f"{why}, {error}")
            self._drop(writer)
            return self._successor()

    def _vanish(self, writer: Writer) -> Writer:
        """Abandon a producer in the middle of a transaction, and return a new producer."""
        number, marks = self._begin(self._id)
        self._ledger.end(self._id, number, Outcome.ABORTED, "vanished")
        try:
            writer.begin()
            self._send(writer, marks)
        except ClientFailed:
            pass
        self._drop(writer)
        return self._successor()

    def _replace(self, writer: Writer) -> Writer:
        """Fence `writer` during a transaction, and let it try to continue. Returns a new producer."""
        number, marks = self._begin(self._id)
        try:
            writer.begin()
            self._send(writer, marks[: len(marks) // 2])
            writer.flush()
        except ClientFailed as error:
            return self._give_up(writer, number, str(error), committing=False)
        successor = self._successor()
        self._ledger.end(self._id, number, Outcome.ABORTED, "replaced")
        successor = self._transaction(successor)
        # A call of the fenced producer that does not return must not block the load.
        zombie = threading.Thread(target=self._go_on, args=(writer, number, marks), daemon=True)
        zombie.start()
        zombie.join(10)
        return successor

    def _go_on(self, writer: Writer, number: int, marks: list[Mark]) -> None:
        try:
            self._send(writer, marks[len(marks) // 2 :])
            writer.commit()
        except ClientFailed:
            self._drop(writer)
            return
        self._ledger.end(self._id, number, Outcome.COMMITTED, "after it was replaced")

    def _leave_open(self) -> None:
        """Leave a transaction open until it times out. The transaction has a transactional id of its own."""
        name = f"{self._id}-left-{self._number + 1}"
        number, marks = self._begin(name)
        self._ledger.end(name, number, Outcome.ABORTED, "left open")
        writer = self._make(name)
        try:
            writer.init()
            writer.begin()
            self._send(writer, marks)
            writer.flush()
        except ClientFailed:
            pass
        self._drop(writer)


def main(
    library: str, bootstrap: str, topic: str, partitions: str, ids: str, ledger_path: str, seed: str
) -> None:
    logging.disable(logging.CRITICAL)
    ended = threading.Event()
    ledger = Ledger(Path(ledger_path))
    threads = []
    for name in ids.split(","):
        producing = TransactionalProducer(
            library,
            bootstrap,
            topic,
            int(partitions),
            name,
            ledger,
            random.Random(f"{seed} {name}"),
            ended,
        )
        threads.append(threading.Thread(target=producing.run, daemon=True))
        threads[-1].start()
    sys.stdin.read()
    ended.set()
    deadline = time.monotonic() + END_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # Exit without the shutdown code of the client libraries, so that an open transaction stays open.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
