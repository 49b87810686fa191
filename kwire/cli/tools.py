"""Dispatch of the tools `kwire topics`, `produce`, `consume` and so on, and their exit statuses."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Final

from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import describe_api_error
from kwire.cli.shared.output import standard_output
from kwire.cli.shared.standard_streams import FAILED, print_error, run_and_flush
from kwire.client.errors import Disconnected, NoReachableBroker, UnknownPartition
from kwire.wire.batch import CorruptBatch
from kwire.wire.errors import ApiError, WireError

USAGE_ERROR, INTERRUPTED = 2, 130

TOOL_MODULES: Final[Mapping[str, str]] = {
    "topics": "kwire.cli.admin.topics",
    "produce": "kwire.cli.records.produce",
    "consume": "kwire.cli.records.consume",
    "groups": "kwire.cli.admin.groups",
    "configs": "kwire.cli.admin.configs",
    "transactions": "kwire.cli.admin.transactions",
    "logs": "kwire.cli.admin.logs",
    "users": "kwire.cli.admin.users",
    "tokens": "kwire.cli.admin.tokens",
    "acls": "kwire.cli.admin.acls",
    "certs": "kwire.cli.admin.certs",
    "dump": "kwire.cli.files.dump",
    "doctor": "kwire.cli.doctor.doctor",
}
"""The module of each command. Its function `parser(name)` returns a parser that sets `options.run`."""


def main(name: str, arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the named command and return its exit status."""
    gc.enable()
    options = parser_of(name).parse_args(arguments)
    return run_and_flush(f"kwire {name}", lambda: _run(name, options, environ))


def _run(name: str, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    output = standard_output(as_json=getattr(options, "json", False), environ=environ)
    try:
        result: int = options.run(options, output)
        return result
    except UsageError as error:
        return _fail(name, str(error), USAGE_ERROR)
    except NoReachableBroker as error:
        return _fail(
            name,
            f"no broker is reachable ({error}): start one with 'kwire serve', or name another with "
            f"--bootstrap-server",
        )
    except Disconnected as error:
        return _fail(name, f"{error}: start that broker, or allow more time with --timeout")
    except (CommandError, UnknownPartition, CorruptBatch, WireError) as error:
        return _fail(name, str(error))
    except ApiError as error:
        return _fail(name, describe_api_error(error))
    except KeyboardInterrupt:
        return INTERRUPTED


def parser_of(name: str) -> argparse.ArgumentParser:
    """Import the module of a command, and return the command's argument parser."""
    parser: argparse.ArgumentParser = importlib.import_module(TOOL_MODULES[name]).parser(name)
    return parser


def _fail(name: str, sentence: str, status: int = FAILED) -> int:
    return print_error(f"kwire {name}", sentence, status)
