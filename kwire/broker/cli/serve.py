"""`kwire serve`: a broker until it is asked to stop."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
from types import FrameType
from typing import Final

import trio

from kwire.broker.cli.settings import LOG_LEVELS, Failure, configuration
from kwire.broker.config import BrokerConfig, ConfigError
from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.net.listeners import BindError
from kwire.broker.net.serve import serve
from kwire.broker.node.format import FormatError
from kwire.broker.storage.checkpoints import NoOwner
from kwire.broker.storage.dirs.owners import StartRefused
from kwire.broker.storage.disk import StorageError

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

GC_THRESHOLDS: Final = (10_000, 20, 50)
"""Rarer than Python's own, and never over what was there at the start: no pause above a millisecond or so."""


def run(options: argparse.Namespace) -> int:
    """Run the command, and give its exit status. Failure."""
    level: str = options.log_level or os.environ.get("KWIRE_LOG_LEVEL", "info")
    if level.lower() not in LOG_LEVELS:
        raise Failure(f"KWIRE_LOG_LEVEL is {level!r}: expected one of {', '.join(LOG_LEVELS)}")
    logging.basicConfig(level=level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    config = configuration(options)
    try:
        failure = trio.run(_serve, config)
    except (NoOwner, StartRefused) as error:
        raise Failure(str(error)) from error
    except StorageError as error:
        raise Failure(f"log.dirs is {','.join(config.log_dirs)}, which cannot be used: {error}") from error
    except (BindError, ConfigError, FormatError, CorruptMetadata) as error:
        raise Failure(str(error)) from error
    if failure:
        raise Failure(failure)
    return 0


async def _serve(config: BrokerConfig) -> str:
    """Serve until asked to stop, or until the broker cannot go on: then the reason is given."""
    stop = _StopSignals(trio.Event(), trio.lowlevel.current_trio_token())
    async with serve(config, alone=True, stop=stop.asked) as broker:
        if stop.asked.is_set() or broker.failure.reason:
            return broker.failure.reason
        print(
            f"kwire serves on {broker.bootstrap}, its data is in {', '.join(config.log_dirs)}; "
            f"Ctrl-C or SIGTERM stops it",
            flush=True,
        )
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        async with trio.open_nursery() as nursery:

            async def wait_for(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_for, stop.asked)
            nursery.start_soon(wait_for, broker.failure.happened)
        broker.loop.logger("kwire.node").info("stopping")
        return broker.failure.reason


class _StopSignals:
    """The first signal asks for a clean stop, the second ends the process: recovery follows."""

    def __init__(self, asked: trio.Event, token: trio.lowlevel.TrioToken) -> None:
        self.asked = asked
        self._token = token
        self._count = 0
        signal.signal(signal.SIGTERM, self._received)
        signal.signal(signal.SIGINT, self._received)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its terminal may close

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(128 + number)
        self._token.run_sync_soon(self.asked.set)
