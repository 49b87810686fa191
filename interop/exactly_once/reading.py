"""A process that reads committed records, also after restarts of the broker.

``python -m interop.exactly_once.reading LIBRARY BOOTSTRAP TOPIC PARTITIONS VIEW SEED`` writes one line per
record to the file VIEW. Every few seconds, the process replaces its consumer by a new consumer, which
continues at the same position. The process ends when its standard input is closed.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from pathlib import Path

from interop.exactly_once.checker import Content
from interop.exactly_once.clients import READERS, ClientFailed

LONGEST_S = 15.0
"""The longest lifetime of a consumer, in seconds."""


def main(library: str, bootstrap: str, topic: str, partitions: str, view: str, seed: str) -> None:
    logging.disable(logging.CRITICAL)
    rng = random.Random(f"{seed} {library}")
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    positions = dict.fromkeys(range(int(partitions)), 0)
    with Path(view).open("ab", buffering=0) as seen:
        while not ended.is_set():
            reader = READERS[library](bootstrap, topic, positions)
            until = time.monotonic() + rng.uniform(2, LONGEST_S)
            try:
                while not ended.is_set() and time.monotonic() < until:
                    found = reader.poll()
                    for partition, offset, value in found:
                        seen.write(b"%d %d %s\n" % (partition, offset, value))
                        positions[partition] = offset + 1
            except ClientFailed:
                # The checker reports records that are missing.
                time.sleep(0.1)
            threading.Thread(target=reader.close, daemon=True).start()
    os._exit(0)


def read_view(path: Path) -> Content:
    """Return the records that a reader has read so far."""
    content: Content = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        partition, offset, value = line.split(b" ", 2)
        content.setdefault(int(partition), []).append((int(offset), value))
    return content


if __name__ == "__main__":
    main(*sys.argv[1:])
