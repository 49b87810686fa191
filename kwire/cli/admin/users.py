"""`kwire users`: list, set and delete SCRAM credentials."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from kwire.broker.security.scram_credentials import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS
from kwire.cli.shared.actions import Actions
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.options import command_parser
from kwire.cli.shared.output import Output
from kwire.client.users import delete_credential, describe_credentials, set_password
from kwire.wire.errors import ApiError, ErrorCode


def parser(name: str) -> ArgumentParser:
    parser = command_parser(name, "List, set and delete the SCRAM credentials of users.")
    actions = Actions(parser)
    list_ = actions.add("list", _list, "List users and their mechanisms.", "kwire users list")
    list_.add_argument("users", nargs="*", metavar="USER", help="a user (default: all users)")
    list_.add_argument("--names", action="store_true", help="print names only, one per line")
    set_ = actions.add(
        "set",
        _set,
        "Set a user's password, from a prompt or from standard input.",
        "kwire users set alice < password.txt",
    )
    set_.add_argument("user", metavar="USER")
    _add_mechanism(set_, "a SCRAM mechanism (default: both)")
    set_.add_argument(
        "--iterations",
        type=int,
        default=MIN_ITERATIONS,
        metavar="N",
        help=f"iterations of the salted hash (default: {MIN_ITERATIONS})",
    )
    delete = actions.add("delete", _delete, "Delete SCRAM credentials.", "kwire users delete alice")
    delete.add_argument("users", nargs="+", metavar="USER")
    _add_mechanism(delete, "a SCRAM mechanism (default: all of the user's)")
    return parser


def _add_mechanism(parser: ArgumentParser, help_: str) -> None:
    parser.add_argument(
        "--mechanism",
        action="append",
        default=[],
        choices=tuple(SCRAM_MECHANISMS),
        help=f"{help_}; can be repeated",
    )


def _list(cluster: CommandClient, options: Namespace, output: Output) -> None:
    found = describe_credentials(cluster, options.users or None)
    if options.names:
        output.names(dict.fromkeys(one.user for one in found))
        return
    output.show([one._asdict() for one in found], empty="no user has a SCRAM credential")


def _set(cluster: CommandClient, options: Namespace, output: Output) -> None:
    if not MIN_ITERATIONS <= options.iterations <= MAX_ITERATIONS:
        raise UsageError(f"--iterations {options.iterations}: expected {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    if not options.user.isascii():
        output.note(f"clients cannot authenticate as {options.user}: SCRAM user names are ASCII")
    password = _read_password(options.user)
    mechanisms = list(dict.fromkeys(options.mechanism or SCRAM_MECHANISMS))
    # Brokers accept a user only once per request, so each mechanism needs its own request. Nothing that can
    # fail runs between the requests: a failure would leave the mechanisms with different passwords.
    for mechanism in mechanisms:
        set_password(cluster, options.user, password, mechanism, options.iterations)
        output.report(
            f"{options.user} has a password for {mechanism}", user=options.user, mechanism=mechanism
        )
    _wait_for_all_brokers(cluster, output, options.user, mechanisms, are_there=True)


def _delete(cluster: CommandClient, options: Namespace, output: Output) -> None:
    for user in options.users:
        given = options.mechanism or [one.mechanism for one in describe_credentials(cluster, [user])]
        mechanisms = list(dict.fromkeys(given))
        for mechanism in mechanisms:
            delete_credential(cluster, user, mechanism)
            output.report(f"{user} has no password for {mechanism} now", user=user, mechanism=mechanism)
        _wait_for_all_brokers(cluster, output, user, mechanisms, are_there=False)


def _wait_for_all_brokers(
    cluster: CommandClient, output: Output, user: str, mechanisms: Sequence[str], *, are_there: bool
) -> None:
    def is_known(node_id: int) -> bool:
        try:
            found = describe_credentials(cluster, [user], node_id)
        except ApiError as error:
            if error.code != ErrorCode.RESOURCE_NOT_FOUND:
                raise
            found = []
        known = {one.mechanism for one in found}
        return all((mechanism in known) == are_there for mechanism in mechanisms)

    cluster.wait_for_all_brokers(is_known, output)


def _read_password(user: str) -> str:
    """Read a password from a prompt, or from the first line of standard input. Raises CommandError."""
    if sys.stdin is None:
        raise UsageError("standard input is closed: write the password to it")
    try:
        if sys.stdin.isatty():
            from getpass import getpass

            password = getpass(f"password of {user}: ")
            if password != getpass("password again: "):
                raise CommandError("the two passwords differ: nothing was changed")
        else:
            password = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError("the password is not UTF-8") from None
    except EOFError:
        password = ""
    if not password:
        raise UsageError("the password is empty")
    return password
