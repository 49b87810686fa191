"""A Kafka Streams application that counts words exactly once, in two instances, while input arrives."""

from __future__ import annotations

import random
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from interop.cluster.load import read_all
from interop.exactly_once.copying import RecordFeed
from interop.java_programs import JavaProgram
from interop.scenarios import streams

TOPICS: Final = (streams.NAME, f"{streams.NAME}-counts")
PARTITIONS: Final = streams.PARTITIONS
"""The number of partitions of each topic. The caller must create the topics before `word_count`."""
WORDS_PER_LINE, VOCABULARY = 3, 50
LINES_PER_SECOND = 100
WORKS_S = 90.0
"""The longest time without progress after a kill: sessions and transactions time out, JVMs start."""


def line(number: int) -> str:
    """Return the input line with that number. Some words occur more often than others."""
    rng = random.Random(number)
    return " ".join(f"word{int(rng.triangular(0, VOCABULARY, 0))}" for _ in range(WORDS_PER_LINE))


class WordCount:
    """The running application. Each of its two instances has the standby tasks of the other."""

    def __init__(self, bootstrap: str, directory: Path, output: streams.Output, programs: ExitStack) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._output = output
        self._programs = programs
        self._running: list[JavaProgram] = []
        self._started = 0
        self._start()
        self._start()
        self._feeding = RecordFeed(
            bootstrap, TOPICS[0], PARTITIONS, lambda number: line(number).encode(), LINES_PER_SECOND
        )
        programs.callback(self._feeding.end)

    def _start(self) -> None:
        self._started += 1
        more = {"num.stream.threads": 1, "num.standby.replicas": 1, "replication.factor": 3}
        program = streams.program(self._bootstrap, self._directory, f"instance-{self._started}", **more)
        self._running.append(self._programs.enter_context(program))

    def replace_one(self) -> None:
        """Kill the older instance, and start a new instance with empty state."""
        self._running.pop(0).kill()
        self._start()

    def wait_for_more(self, count: int = 300) -> None:
        """Wait until `count` more words are counted."""
        self._until(self._output.total + count)

    def _until(self, count: int) -> None:
        self._running[-1].until(lambda: self._output.total >= count, f"{count} are counted", WORKS_S)

    def end(self) -> int:
        """Stop the input, wait for the counts, and stop the instances. Returns the number of words.

        Raises AssertionError if a count is wrong or an instance has logged an error.
        """
        written = self._feeding.end()
        self._until(written * WORDS_PER_LINE)
        ended = [program.stop() for program in self._running]
        assert ended == [128 + signal.SIGTERM] * 2, ended
        food = Counter(value for *_, value in read_all(self._bootstrap, TOPICS[0], PARTITIONS))
        assert food == Counter(line(number).encode() for number in range(written)), "it was fed otherwise"
        words = Counter(word for number in range(written) for word in line(number).split())
        wrong = self._output.wrong_counts(words)
        assert not wrong, wrong
        assert set(self._output.counts) == set(words)
        errors = [
            each
            for program in self._running
            for each in program.log.read_text().splitlines()
            if "ERROR" in each
        ]
        assert not errors, errors
        return self._output.total


@contextmanager
def word_count(bootstrap: str) -> Iterator[WordCount]:
    """Run the instances and write their input until the end of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="interop-streams-", ignore_cleanup_errors=True) as directory,
        streams.Output(bootstrap, TOPICS[1]) as output,
        ExitStack() as programs,
    ):
        yield WordCount(bootstrap, Path(directory), output, programs)
