"""JAAS text, compared with Apache Kafka's parser."""

from __future__ import annotations

import pytest

from kwire.broker.config.jaas import PLAIN_MODULE, SCRAM_MODULE, MalformedJaas, parse_jaas, parse_jaas_file


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('M required username="a" password="b";', {"username": "a", "password": "b"}),
        ("M required;", {}),
        ("M REQUIRED a='x\"y' b=\"x'y\" ;", {"a": 'x"y', "b": "x'y"}),
        (
            "M required a=word-with_all$.7 b=\N{LATIN SMALL LETTER E WITH ACUTE};",
            {"a": "word-with_all$.7", "b": "\N{LATIN SMALL LETTER E WITH ACUTE}"},
        ),
        (r'M required a="q\"q\\\x\t\101\7z";', {"a": 'q"q\\x\tA\7z'}),
        (r'M required a="\4011";', {"a": " 11"}),
        ("M required a = \n x /* comment ; */ b=y // more ; \n c=z; // end", {"a": "x", "b": "y", "c": "z"}),
        ("M required a=x / not read ;\n;", {"a": "x"}),
        ("M required a=x a=y;", {"a": "y"}),
        ('M required a="";', {"a": ""}),
        ('M required a="x\n;', {"a": "x"}),
        ("'M' requisite 'a'=x;", {"a": "x"}),
        ("M sufficient a=x;b=y", None),
        ("M optional a=-x;", None),
    ],
)
def test_options_of_a_login_module(text: str, options: dict[str, str] | None) -> None:
    if options is None:
        with pytest.raises(MalformedJaas):
            parse_jaas(text)
    else:
        [module] = parse_jaas(text).modules
        assert (module.name, module.options) == ("M", options)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "Login module not specified in JAAS config"),
        (" // only ;", "Login module not specified in JAAS config"),
        ("M", "Login module control flag not specified in JAAS config"),
        ("M;", "Login module control flag is not available in the JAAS config"),
        ("M 7;", "Login module control flag is not available in the JAAS config"),
        ("M needed;", "Invalid login module control flag in JAAS config"),
        ("M required username;", "Value not specified for key 'username' in JAAS config"),
        ("M required a;", "Value not specified for a key in JAAS config"),
        ("M required a=;", "Value not specified for a key in JAAS config"),
        ("M required a=7secret;", "Value not specified for a key in JAAS config"),
        ("M required a=", "Value not specified for a key in JAAS config"),
        ("M required a=x", "JAAS config entry not terminated by semi-colon"),
        ("M required", "JAAS config entry not terminated by semi-colon"),
        ("M required; N required;", "JAAS config property contains 2 login modules, should be 1 module"),
    ],
)
def test_a_malformed_login_module_is_refused(text: str, error: str) -> None:
    with pytest.raises(MalformedJaas) as failed:
        parse_jaas(text)
    assert str(failed.value) == error


def test_a_login_module_contains_users_and_the_credentials_of_this_node() -> None:
    options = 'required username="me" password="mine" user_me="mine" user_="none" tokenauth="TRUE"'
    plain, scram = parse_jaas(f"{PLAIN_MODULE} {options};"), parse_jaas(f"{SCRAM_MODULE} {options};")
    assert plain.users == {"me": "mine", "": "none"}
    assert scram.users == {}
    assert (plain.username, plain.password, plain.is_token) == ("me", "mine", False)
    assert scram.is_token
    assert "mine" not in repr(plain)


FILE = f"""
// Everybody's
KafkaServer {{
  {SCRAM_MODULE} required username="node" password="secret";
  {PLAIN_MODULE} required
      username="other" password="x" user_a="1" user_b="2";
  {PLAIN_MODULE} optional user_b="3" user_c="4";
}};
clients.KafkaServer {{ {PLAIN_MODULE} required user_d="5"; }};
Client {{ a.B required useTicketCache=true; }};
"""


def test_a_jaas_file_has_contexts_with_several_modules() -> None:
    contexts = parse_jaas_file(FILE)
    assert sorted(contexts) == ["Client", "KafkaServer", "clients.KafkaServer"]
    server = contexts["KafkaServer"]
    assert (server.username, server.password, server.is_token) == ("node", "secret", False)
    assert server.users == {"a": "1", "b": "2", "c": "4"}
    assert contexts["clients.KafkaServer"].users == {"d": "5"}


@pytest.mark.parametrize(
    "text",
    [
        "KafkaServer",
        "{ M required; };",
        "KafkaServer M required;",
        "KafkaServer { M required; }",
        "KafkaServer { M required;",
        "KafkaServer { M required",
        'KafkaServer { M required a="${user.home}"; };',
    ],
)
def test_a_malformed_jaas_file_is_refused(text: str) -> None:
    with pytest.raises(MalformedJaas):
        parse_jaas_file(text)
