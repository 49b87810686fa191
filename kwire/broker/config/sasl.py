"""What settings say of SASL: the mechanisms of a listener, and what its JAAS text tells each. KIP-43, KIP-85.

A listener's own setting (`listener.name.LISTENER.KEY`) comes before that of all listeners, and a mechanism's
of a listener (`listener.name.LISTENER.MECHANISM.KEY`) before both. JAAS text is a mechanism's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol, cast

from kwire.broker.config.broker_keys import BROKER_KEYS
from kwire.broker.config.definition import ConfigError, Value
from kwire.broker.config.jaas import (
    PLAIN_MODULE,
    SCRAM_MODULE,
    LoginContext,
    MalformedJaas,
    parse_jaas,
    parse_jaas_file,
)
from kwire.broker.config.listeners import INTER_BROKER_NAME
from kwire.broker.config.roles import Settings
from kwire.wire.mechanisms import MECHANISMS, PLAIN
from kwire.wire.named_tuple import NamedTuple

SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")

INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"
ENABLED: Final = "sasl.enabled.mechanisms"
JAAS: Final = "sasl.jaas.config"
INTER_BROKER_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
CONTROLLER_MECHANISM: Final = "sasl.mechanism.controller.protocol"
MAX_RECEIVE: Final = "sasl.server.max.receive.size"
MAX_REAUTH: Final = "connections.max.reauth.ms"

SERVER_CONTEXT: Final = "KafkaServer"
"""What a broker's context is called in a file of Java's."""

_LOGIN_MODULES: Final = (PLAIN_MODULE, SCRAM_MODULE)
_MECHANISM_CLASSES: Final = (
    "sasl.server.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
)
MECHANISM_KEYS: Final = (JAAS, *_MECHANISM_CLASSES, MAX_REAUTH)
"""The keys that are set for a mechanism of a listener."""
_CLIENT_CALLBACK_HANDLER: Final = "sasl.client.callback.handler.class"


class SaslSettings(Settings, Protocol):
    """With what a mechanism of a listener is told, whose keys are not known."""

    @property
    def settings(self) -> Mapping[str, str]: ...


class JaasFile(NamedTuple):
    """A file of Java's, for the mechanisms of which no setting tells."""

    path: str
    text: str = ""
    fault: str | None = None
    """Why it could not be read."""

    def __repr__(self) -> str:
        return f"JaasFile({self.path}, [hidden])"


class ListenerSasl(NamedTuple):
    """What is said of a listener."""

    mechanisms: tuple[str, ...]
    """Those that are enabled."""
    plain_users: Mapping[str, str]
    """The passwords of those who may come by PLAIN, as its JAAS text tells them."""
    max_receive_bytes: int
    max_reauth_ms: Mapping[str, int]
    """By the mechanisms; 0 where nobody has to authenticate again."""

    def __repr__(self) -> str:
        return f"ListenerSasl({', '.join(self.mechanisms)}, [hidden])"


def listener_value(state: SaslSettings, listener: str, name: str) -> Value:
    """A listener's own value of a key, or that of all listeners. ConfigError."""
    text = state.settings.get(f"listener.name.{listener.lower()}.{name}")
    return state.values[name] if text is None else BROKER_KEYS[name].parse(text)


def enabled_mechanisms(state: SaslSettings, listener: str) -> tuple[str, ...]:
    """The mechanisms that clients may use on a listener. ConfigError."""
    return tuple(cast("list[str]", listener_value(state, listener, ENABLED)))


def read_listener_sasl(state: SaslSettings, listener: str, file: JaasFile | None) -> ListenerSasl:
    """What is said of a listener of SASL. ConfigError where it cannot be served so."""
    mechanisms = enabled_mechanisms(state, listener)
    if not mechanisms:
        raise ConfigError(f"{listener} is of SASL, and {ENABLED} is empty: No SASL mechanisms are enabled")
    for mechanism in mechanisms:
        _check_served(f"{ENABLED} of {listener}", mechanism)
    max_reauth_ms = {}
    for mechanism in mechanisms:
        text = state.settings.get(_key(listener, mechanism, MAX_REAUTH))
        value = (
            listener_value(state, listener, MAX_REAUTH)
            if text is None
            else BROKER_KEYS[MAX_REAUTH].parse(text)
        )
        max_reauth_ms[mechanism] = cast(int, value)
    # All of them, whose text has to be there, though no other's says anything.
    contexts = {mechanism: login_context(state, listener, mechanism, file) for mechanism in mechanisms}
    return ListenerSasl(
        mechanisms,
        contexts[PLAIN].users if PLAIN in contexts else {},
        cast(int, listener_value(state, listener, MAX_RECEIVE)),
        max_reauth_ms,
    )


def peer_mechanism(state: SaslSettings, listener: str) -> str | None:
    """The mechanism by which this node goes to others on a listener, if by any. ConfigError."""
    listeners = state.listeners
    if listeners.protocols.get(listener) not in SASL_PROTOCOLS:
        return None
    name = CONTROLLER_MECHANISM if listener in listeners.controllers else INTER_BROKER_MECHANISM
    mechanism = cast(str, state.values[name])
    _check_served(name, mechanism)
    return mechanism


def login_context(state: SaslSettings, listener: str, mechanism: str, file: JaasFile | None) -> LoginContext:
    """What a listener's JAAS text, or else the file, tells a mechanism. ConfigError."""
    own = f"listener.name.{listener.lower()}."
    for key in (
        _CLIENT_CALLBACK_HANDLER,
        own + _CLIENT_CALLBACK_HANDLER,
        *(_key(listener, mechanism, name) for name in _MECHANISM_CLASSES),
    ):
        if key in state.settings:
            raise ConfigError(f"{key} is set: classes of Java's cannot be loaded here")
    key = _key(listener, mechanism, JAAS)
    if key in state.settings:
        try:
            context = parse_jaas(state.settings[key])
        except MalformedJaas as error:
            raise ConfigError(f"{key}: {error}") from None
    else:
        context, key = _context_from_file(listener.lower(), file, key)
    for module in context.modules:
        if module.name not in _LOGIN_MODULES:
            raise ConfigError(
                f"{key}: No LoginModule found for {module.name}: there are {' and '.join(_LOGIN_MODULES)}"
            )
    return context


def _context_from_file(listener: str, file: JaasFile | None, missing: str) -> tuple[LoginContext, str]:
    """The context of the file that is a listener's, or else that of all, and what it is called."""
    contexts = {}
    if file is not None:
        try:
            contexts = parse_jaas_file(file.text)
        except MalformedJaas as error:
            raise ConfigError(f"{file.path}: {error}") from None
        if file.fault is not None:
            raise ConfigError(f"java.security.auth.login.config is {file.path}: {file.fault}")
    for name in (f"{listener}.{SERVER_CONTEXT}", SERVER_CONTEXT):
        if name in contexts:
            return contexts[name], name
    path = file.path if file is not None else "not set"
    raise ConfigError(
        f"Could not find a '{SERVER_CONTEXT}' or '{listener}.{SERVER_CONTEXT}' entry in the JAAS "
        f"configuration. System property 'java.security.auth.login.config' is {path}: {missing} is missing"
    )


def _key(listener: str, mechanism: str, name: str) -> str:
    return f"listener.name.{listener.lower()}.{mechanism.lower()}.{name}"


def _check_served(name: str, mechanism: str) -> None:
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"{name} is or has {mechanism}, which is not served yet: use {', '.join(MECHANISMS)}"
        )


def check_inter_broker(state: SaslSettings) -> None:
    """ConfigError where it is not clear how brokers go to each other, or where they would not be let in."""
    if INTER_BROKER_NAME in state.settings and INTER_BROKER_PROTOCOL in state.settings:
        raise ConfigError(f"Only one of {INTER_BROKER_NAME} and {INTER_BROKER_PROTOCOL} should be set.")
    listener = state.listeners.inter_broker
    if state.listeners.protocols.get(listener) not in SASL_PROTOCOLS:
        return
    if state.values[INTER_BROKER_MECHANISM] not in enabled_mechanisms(state, listener):
        raise ConfigError(
            f"requirement failed: {INTER_BROKER_MECHANISM} must be included in {ENABLED} when SASL is used "
            f"for inter-broker communication"
        )


def unprefixed_jaas_keys(state: SaslSettings, listeners: Iterable[str]) -> list[str]:
    """The keys of JAAS text that is nobody's, since they name no mechanism."""
    keys = (JAAS, *(f"listener.name.{listener.lower()}.{JAAS}" for listener in listeners))
    return [key for key in keys if key in state.settings]
