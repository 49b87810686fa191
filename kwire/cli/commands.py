"""The commands `kwire topics`, `produce`, `consume` and so on: from the command line to an exit status."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Final

from kwire.cli.shared.failure import Failure, UsageError, sentence_of
from kwire.cli.shared.output import standard_output
from kwire.cli.shared.standard_streams import FAILED, tell, told
from kwire.client.failure import Lost, NoBroker, NoPartition
from kwire.wire.batch import CorruptBatch
from kwire.wire.errors import ApiError, WireError

WRONG_USE, INTERRUPTED = 2, 130

COMMANDS: Final[Mapping[str, str]] = {
    "topics": "kwire.cli.admin.topics",
    "produce": "kwire.cli.records.produce",
    "consume": "kwire.cli.records.consume",
    "groups": "kwire.cli.admin.groups",
    "configs": "kwire.cli.admin.configs",
    "transactions": "kwire.cli.admin.transactions",
    "logs": "kwire.cli.admin.logs",
    "users": "kwire.cli.admin.users",
    "tokens": "kwire.cli.admin.tokens",
    "dump": "kwire.cli.files.dump",
    "doctor": "kwire.cli.doctor.doctor",
}
"""Each command's module, whose `parser(name)` knows its options, and which function does what they say."""


def main(name: str, arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the command of this name, and give its exit status."""
    gc.enable()
    options = parser_of(name).parse_args(arguments)
    return told(f"kwire {name}", lambda: _run(name, options, environ))


def _run(name: str, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    output = standard_output(as_json=getattr(options, "json", False), environ=environ)
    try:
        result: int = options.run(options, output)
        return result
    except UsageError as error:
        return _fail(name, str(error), WRONG_USE)
    except NoBroker as error:
        return _fail(
            name,
            f"no broker answers ({error}): start one with 'kwire serve', or name another with "
            f"--bootstrap-server",
        )
    except Lost as error:
        return _fail(name, f"{error}: start that broker, or give it more time by --timeout")
    except (Failure, NoPartition, CorruptBatch, WireError) as error:
        return _fail(name, str(error))
    except ApiError as error:
        return _fail(name, sentence_of(error))
    except KeyboardInterrupt:
        return INTERRUPTED


def parser_of(name: str) -> argparse.ArgumentParser:
    """What a command takes."""
    parser: argparse.ArgumentParser = importlib.import_module(COMMANDS[name]).parser(name)
    return parser


def _fail(name: str, sentence: str, status: int = FAILED) -> int:
    return tell(f"kwire {name}", sentence, status)
