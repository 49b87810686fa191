"""Commands with actions, such as `list` of `kwire topics`: each speaks to a cluster."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial

from kwire.cli.shared.client_settings import settings_of
from kwire.cli.shared.cluster import Cluster
from kwire.cli.shared.options import add_json, add_wire, help_parts
from kwire.cli.shared.output import Output

Action = Callable[[Cluster, Namespace, Output], None]


class Actions:
    """The actions of a command."""

    def __init__(self, parser: ArgumentParser) -> None:
        self._parser = parser
        self._actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    def add(self, name: str, act: Action, description: str, example: str) -> ArgumentParser:
        """The parser of an action, which does `act`."""
        help_ = description.rstrip(".")
        action = self._actions.add_parser(name, help=help_, **help_parts(description, example))
        self._parser.epilog = self._parser.epilog or action.epilog
        action.set_defaults(run=partial(_run, act))
        add_wire(action)
        add_json(action)
        return action


def _run(act: Action, options: Namespace, output: Output) -> int:
    with Cluster(settings_of(options)) as cluster:
        try:
            act(cluster, options, output)
        finally:
            output.end()  # also where only a part could be done
    return 0
