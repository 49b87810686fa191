"""`kwire tokens`: create, renew and expire delegation tokens."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from kwire.broker.security.principal import USER, Principal
from kwire.cli.records.positions import parse_duration_ms
from kwire.cli.shared.actions import Actions
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.options import add_repeatable_option, command_parser
from kwire.cli.shared.output import Output, Row, format_time
from kwire.client.tokens import (
    BROKER_DEFAULT,
    Token,
    create_token,
    describe_tokens,
    expire_token,
    renew_token,
)


def parser(name: str) -> ArgumentParser:
    parser = command_parser(name, "List, create, renew and expire delegation tokens.")
    actions = Actions(parser)
    list_ = actions.add("list", _list, "List the tokens that you can describe.", "kwire tokens list")
    list_.add_argument("owners", nargs="*", metavar="USER", help="only tokens of these owners (default: all)")
    create = actions.add(
        "create",
        _create,
        "Create a token and print its password.",
        "kwire tokens create --renewer bob --command-config alice.properties",
    )
    create.add_argument("--owner", metavar="USER", help="the owner (default: you)")
    add_repeatable_option(create, "--renewer", "USER", "another user that can renew it")
    create.add_argument(
        "--lifetime", metavar="7d", help="maximum lifetime including renewals (default: the brokers' maximum)"
    )
    renew = actions.add("renew", _renew, "Renew tokens.", "kwire tokens renew 2Fs9BXgvQ7iFvqXjfkVDdA")
    renew.add_argument("tokens", nargs="+", metavar="ID")
    renew.add_argument(
        "--for", dest="period", metavar="1d", help="new time to live (default: the brokers' setting)"
    )
    expire = actions.add(
        "expire", _expire, "Expire tokens, now or later.", "kwire tokens expire 2Fs9BXgvQ7iFvqXjfkVDdA"
    )
    expire.add_argument("tokens", nargs="+", metavar="ID")
    expire.add_argument("--after", dest="period", metavar="10m", help="expire after this time (default: now)")
    return parser


def _list(cluster: CommandClient, options: Namespace, output: Output) -> None:
    found = describe_tokens(cluster, [_user(name) for name in options.owners] or None)
    output.show([_row(token) for token in found], empty="there are no tokens that you can describe")


def _create(cluster: CommandClient, options: Namespace, output: Output) -> None:
    owner = None if options.owner is None else _user(options.owner)
    lifetime_ms = _parse_period_ms(options.lifetime, "--lifetime")
    token = create_token(cluster, owner, [_user(name) for name in options.renewer], lifetime_ms)
    # Print the token before the wait, which the user may interrupt: the token already exists.
    if output.as_json:
        output.document([{**_row(token), "password": token.password}])
    else:
        output.line(
            f"token {token.token_id} of {token.owner.name} expires at {format_time(token.expires_ms)}"
        )
        output.line(f"password, for SCRAM with tokenauth=true: {token.password}")
    _wait_for_all_brokers(cluster, output, token.token_id, is_there=True)


def _renew(cluster: CommandClient, options: Namespace, output: Output) -> None:
    period_ms = _parse_period_ms(options.period, "--for")
    for token in _find_tokens(cluster, options.tokens):
        _report_expiry(output, token.token_id, renew_token(cluster, token.hmac, period_ms))


def _expire(cluster: CommandClient, options: Namespace, output: Output) -> None:
    period_ms = _parse_period_ms(options.period, "--after")
    for token in _find_tokens(cluster, options.tokens):
        expires_ms = expire_token(cluster, token.hmac, period_ms)
        _report_expiry(output, token.token_id, expires_ms)
        if options.period is None:
            _wait_for_all_brokers(cluster, output, token.token_id, is_there=False)


def _wait_for_all_brokers(cluster: CommandClient, output: Output, token_id: str, *, is_there: bool) -> None:
    """Wait until all brokers have the token, or no longer have it: the next command may use the token."""
    cluster.wait_for_all_brokers(
        lambda node_id: (
            any(one.token_id == token_id for one in describe_tokens(cluster, None, node_id)) == is_there
        ),
        output,
    )


def _report_expiry(output: Output, token_id: str, expires_ms: int) -> None:
    expires = format_time(expires_ms)
    output.report(f"token {token_id} expires at {expires}", token=token_id, expires=expires)


def _find_tokens(cluster: CommandClient, ids: list[str]) -> list[Token]:
    """Return tokens by id, with the HMAC that requests need. Raises CommandError for an unknown id."""
    known = {token.token_id: token for token in describe_tokens(cluster)}
    for one in ids:
        if one not in known:
            raise CommandError(f"there is no token {one} that you can describe: see 'kwire tokens list'")
    return [known[one] for one in ids]


def _row(token: Token) -> Row:
    return {
        "token": token.token_id,
        "owner": token.owner.name,
        "requester": token.requester.name,
        "renewers": [one.name for one in token.renewers],
        "issued": format_time(token.issued_ms),
        "expires": format_time(token.expires_ms),
        "renewable_until": format_time(token.max_ms),
    }


def _user(name: str) -> Principal:
    return Principal(USER, name.removeprefix(f"{USER}:"))


def _parse_period_ms(text: str | None, option: str) -> int:
    if text is None:
        return BROKER_DEFAULT
    found = parse_duration_ms(text)
    if found is None:
        raise UsageError(f"{option} {text}: expected a time like 10m (or ms, s, h, d)")
    return found
