"""SASL settings with which both brokers start, or with which both fail with the same error message."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from interop.brokers import ApacheKafka, Broker, Kwire
from interop.sasl import Talk, plain
from interop.test_damaged_directories import serves

PLAIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_a="b";'
)
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b";'
LISTENER = "listener.name.sasl_plaintext."
PLAIN_TEXT = f"{LISTENER}plain.sasl.jaas.config"
SCRAM_TEXT = f"{LISTENER}scram-sha-256.sasl.jaas.config"
BOTH = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}
CONTROLLER = {
    "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.mechanism.controller.protocol": "PLAIN",
}
NOBODY = (
    "Could not find a 'KafkaServer' or 'sasl_plaintext.KafkaServer' entry in the JAAS configuration. System "
    "property 'java.security.auth.login.config' is"
)
ENABLED = (
    "sasl.mechanism.inter.broker.protocol must be included in sasl.enabled.mechanisms when SASL is used for "
    "inter-broker communication"
)

CASES: dict[str, tuple[dict[str, str | None], str | None]] = {
    "PLAIN": ({}, None),
    "SCRAM, too": ({**BOTH, SCRAM_TEXT: SCRAM}, None),
    "SCRAM with PLAIN's module": (
        {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", SCRAM_TEXT: PLAIN},
        None,
    ),
    "no names": ({PLAIN_TEXT: PLAIN.partition(" username")[0] + ";"}, None),
    "enabled for the listener": (
        {"sasl.enabled.mechanisms": None, f"{LISTENER}sasl.enabled.mechanisms": "PLAIN"},
        None,
    ),
    "less than no time": ({f"{LISTENER}plain.connections.max.reauth.ms": "-5"}, None),
    "controllers": ({**CONTROLLER, "listener.name.controller.plain.sasl.jaas.config": PLAIN}, None),
    "an unused class": (
        {"sasl.server.callback.handler.class": "org.apache.kafka.common.metrics.JmxReporter"},
        None,
    ),
    "PLAIN without text": ({PLAIN_TEXT: None}, NOBODY),
    "SCRAM without text": ({**BOTH}, NOBODY),
    "text of no mechanism": (
        {PLAIN_TEXT: None, "sasl.jaas.config": PLAIN},
        "Server config sasl.jaas.config should be prefixed with SASL mechanism name, ignoring config",
    ),
    "text in capitals": ({PLAIN_TEXT: None, f"{LISTENER}PLAIN.sasl.jaas.config": PLAIN}, NOBODY),
    "text for another listener": ({PLAIN_TEXT: None, PLAIN_TEXT.replace("_", "-"): PLAIN}, NOBODY),
    "no text": ({PLAIN_TEXT: ""}, "Login module not specified in JAAS config"),
    "a number": (
        {PLAIN_TEXT: PLAIN.replace('"a"', "7a")},
        "Value not specified for key 'username' in JAAS config",
    ),
    "two modules": (
        {PLAIN_TEXT: PLAIN + SCRAM},
        "JAAS config property contains 2 login modules, should be 1 module",
    ),
    "a module that is not there": ({PLAIN_TEXT: "a.B required;"}, "No LoginModule found for a.B"),
    "Kerberos, the default": ({"sasl.enabled.mechanisms": None}, ENABLED),
    "another mechanism between brokers": ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, ENABLED),
    "two ways between brokers": (
        {"inter.broker.listener.name": "SASL_PLAINTEXT"},
        "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
    ),
    "controllers without text": (
        {**CONTROLLER},
        NOBODY.replace("sasl_plaintext", "controller"),
    ),
    "a word for a time": (
        {f"{LISTENER}plain.connections.max.reauth.ms": "x"},
        "Invalid value x for configuration connections.max.reauth.ms: Not a number of type LONG",
    ),
    "a provider that is not there": (
        {"config.providers": "x", "config.providers.x.class": "a.B"},
        "Could not load config provider class or one of its dependencies",
    ),
    "a file of secrets that is not there": (
        {
            "config.providers": "x",
            "config.providers.x.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
            "num.partitions": "${x:/nowhere:x}",
        },
        "Could not read properties from file /nowhere",
    ),
    "no map for controllers": (
        {"listener.security.protocol.map": None},
        "No security protocol defined for listener CONTROLLER",
    ),
}
"""By case name: the changed settings, and the common error message, or None if both brokers start."""


def settings_of(broker: Broker) -> dict[str, str]:
    """Return the settings of a SASL listener that is also the inter-broker listener."""
    return {
        "listeners": f"SASL_PLAINTEXT://{broker.bootstrap},CONTROLLER://{broker.controller_bootstrap}",
        "advertised.listeners": f"SASL_PLAINTEXT://{broker.bootstrap}",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        PLAIN_TEXT: PLAIN,
    }


def outcome(broker: Broker) -> tuple[bool, str]:
    """Start the broker and return whether it runs, and its log."""
    try:
        return serves(broker), broker.log_text()
    except subprocess.CalledProcessError as error:
        # Apache Kafka validates its settings when it formats a directory, too.
        return False, error.stderr.decode()


@pytest.mark.parametrize("name", CASES)
def test_both_start_or_both_fail(name: str, only: str) -> None:
    changed, message = CASES[name]
    for kind in (ApacheKafka, Kwire):
        if only not in ("", kind.name):
            continue
        broker = kind()
        try:
            broker.properties.update(settings_of(broker))
            for key, text in changed.items():
                broker.properties.pop(key, None)
                if text is not None:
                    broker.properties[key] = text
            serving, output = outcome(broker)
            assert (kind.name, serving) == (kind.name, message is None), output[-2000:]
            assert (message or "") in output
            assert kind is ApacheKafka or "Traceback" not in output
        finally:
            broker.discard()


FILE = f"""
KafkaServer {{
    {SCRAM}
    {PLAIN}
}};
Client {{
    a.B required useTicketCache=true;
}};
"""


@pytest.mark.parametrize("text", [FILE, FILE.replace("Kafka", "sasl_plaintext.Kafka"), "Client { };"])
def test_jaas_file_is_read_by_both(text: str, tmp_path: Path, only: str) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text(text)
    for kind, variable in ((ApacheKafka, "JAVA_TOOL_OPTIONS"), (Kwire, "KAFKA_OPTS")):
        if only not in ("", kind.name):
            continue
        broker = kind()
        try:
            broker.properties.update(settings_of(broker))
            broker.properties.update(BOTH)
            del broker.properties[PLAIN_TEXT]
            broker.environment[variable] = f"-Djava.security.auth.login.config={path}"
            serving, output = outcome(broker)
            assert (kind.name, serving) == (kind.name, "KafkaServer" in text), output[-2000:]
            assert serving or f"{NOBODY} {path}" in output
        finally:
            broker.discard()


PROVIDERS = "org.apache.kafka.common.config.provider"


def test_config_providers_resolve_secrets(tmp_path: Path, only: str) -> None:
    (tmp_path / "secrets.properties").write_text("a = from a file\nb=\\u00e9\n")
    (tmp_path / "c").write_text("of a directory")
    for kind in (ApacheKafka, Kwire):
        if only not in ("", kind.name):
            continue
        broker = kind()
        broker.environment["SECRET_OF_D"] = "in the air"
        users = {
            "a": f"${{file:{tmp_path}/secrets.properties:a}}",
            "b": f"<${{file:{tmp_path}/secrets.properties:b}}>",
            "c": f"${{dir:{tmp_path}:c}}",
            "d": "${env:SECRET_OF_D}",
            "e": f"${{file:{tmp_path}/secrets.properties:none}}",
            "f": "${nobody:x}",
            "g": "${shut:/etc:hostname}",
        }
        options = " ".join(f'user_{name}="{password}"' for name, password in users.items())
        broker.properties.update(settings_of(broker))
        broker.properties |= {
            "config.providers": "file,dir,env,shut",
            "config.providers.file.class": f"{PROVIDERS}.FileConfigProvider",
            "config.providers.file.param.allowed.paths": str(tmp_path),
            "config.providers.dir.class": f"{PROVIDERS}.DirectoryConfigProvider",
            "config.providers.env.class": f"{PROVIDERS}.EnvVarConfigProvider",
            "config.providers.env.param.allowlist.pattern": "SECRET_.*",
            "config.providers.shut.class": f"{PROVIDERS}.DirectoryConfigProvider",
            "config.providers.shut.param.allowed.paths": str(tmp_path),
            PLAIN_TEXT: PLAIN.replace(";", f" {options};"),
        }
        passwords = {
            **users,
            "a": "from a file",
            "b": "<\N{LATIN SMALL LETTER E WITH ACUTE}>",
            "c": "of a directory",
            "d": "in the air",
        }
        try:
            broker.start()
            for name, password in passwords.items():
                with Talk(broker.bootstrap) as talk:
                    talk.handshake()
                    assert talk.authenticate(plain(name, password))["ErrorCode"] == 0, (kind.name, name)
            assert kind is ApacheKafka or "in the air" not in broker.log_text()
        finally:
            broker.discard()
