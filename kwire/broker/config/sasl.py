"""SASL settings: the mechanisms of a listener, and their JAAS configurations. KIP-43, KIP-85.

A setting with a listener prefix (`listener.name.LISTENER.KEY`) overrides the setting without it. A setting
with a listener and mechanism prefix (`listener.name.LISTENER.MECHANISM.KEY`) overrides both. A JAAS
configuration always has both prefixes.
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
"""The context of brokers in a JAAS file."""

_LOGIN_MODULES: Final = (PLAIN_MODULE, SCRAM_MODULE)
_MECHANISM_CLASSES: Final = (
    "sasl.server.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
)
MECHANISM_KEYS: Final = (JAAS, *_MECHANISM_CLASSES, MAX_REAUTH)
"""The keys that can have a listener and mechanism prefix."""
_CLIENT_CALLBACK_HANDLER: Final = "sasl.client.callback.handler.class"


class SaslSettings(Settings, Protocol):
    """The effective settings: `values`, and texts in `settings`. Only `settings` has keys with a prefix."""

    @property
    def settings(self) -> Mapping[str, str]: ...


class JaasFile(NamedTuple):
    """A JAAS file, for mechanisms without a JAAS configuration in the settings."""

    path: str
    text: str = ""
    fault: str | None = None
    """The reason why the file could not be read."""

    def __repr__(self) -> str:
        return f"JaasFile({self.path}, [hidden])"


class ListenerSasl(NamedTuple):
    """The SASL settings of a listener."""

    mechanisms: tuple[str, ...]
    """The enabled mechanisms."""
    plain_users: Mapping[str, str]
    """The users in the JAAS configuration of PLAIN: name -> password."""
    max_receive_bytes: int
    max_reauth_ms: Mapping[str, int]
    """The maximum session lifetime of each mechanism; 0 means no limit."""

    def __repr__(self) -> str:
        return f"ListenerSasl({', '.join(self.mechanisms)}, [hidden])"


def listener_value(state: SaslSettings, listener: str, name: str) -> Value:
    """Return a key's value for a listener. Raises ConfigError if the value is invalid."""
    text = state.settings.get(f"listener.name.{listener.lower()}.{name}")
    return state.values[name] if text is None else BROKER_KEYS[name].parse(text)


def enabled_mechanisms(state: SaslSettings, listener: str) -> tuple[str, ...]:
    """Return the mechanisms that clients can use on a listener.

    Raises ConfigError if the setting is invalid.
    """
    return tuple(cast("list[str]", listener_value(state, listener, ENABLED)))


def read_listener_sasl(state: SaslSettings, listener: str, file: JaasFile | None) -> ListenerSasl:
    """Read the SASL settings of a listener.

    Raises ConfigError if a setting is invalid, or if no mechanism is enabled, or if an enabled mechanism is
    not supported or has no valid JAAS configuration.
    """
    mechanisms = enabled_mechanisms(state, listener)
    if not mechanisms:
        raise ConfigError(f"listener {listener}: {ENABLED} is empty: No SASL mechanisms are enabled")
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
    # Every mechanism needs a JAAS configuration, although only PLAIN's has users.
    contexts = {mechanism: login_context(state, listener, mechanism, file) for mechanism in mechanisms}
    return ListenerSasl(
        mechanisms,
        contexts[PLAIN].users if PLAIN in contexts else {},
        cast(int, listener_value(state, listener, MAX_RECEIVE)),
        max_reauth_ms,
    )


def peer_mechanism(state: SaslSettings, listener: str) -> str | None:
    """Return the mechanism with which this node connects to `listener` of other nodes; None without SASL.

    Raises ConfigError if the mechanism is not supported.
    """
    listeners = state.listeners
    if listeners.protocols.get(listener) not in SASL_PROTOCOLS:
        return None
    name = CONTROLLER_MECHANISM if listener in listeners.controllers else INTER_BROKER_MECHANISM
    mechanism = cast(str, state.values[name])
    _check_served(name, mechanism)
    return mechanism


def login_context(state: SaslSettings, listener: str, mechanism: str, file: JaasFile | None) -> LoginContext:
    """Return a mechanism's JAAS configuration, from the settings or else from the file.

    Raises ConfigError if it is missing or malformed, or needs a Java class that kwire does not have.
    """
    own = f"listener.name.{listener.lower()}."
    for key in (
        _CLIENT_CALLBACK_HANDLER,
        own + _CLIENT_CALLBACK_HANDLER,
        *(_key(listener, mechanism, name) for name in _MECHANISM_CLASSES),
    ):
        if key in state.settings:
            raise ConfigError(f"{key} is set, but Java classes cannot be loaded")
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
                f"{key}: No LoginModule found for {module.name}: use {' or '.join(_LOGIN_MODULES)}"
            )
    return context


def _context_from_file(listener: str, file: JaasFile | None, missing: str) -> tuple[LoginContext, str]:
    """Return the file's context for the listener, or else for all listeners, with the name of the context.

    `missing` is the key that would replace the file, for the error text.
    """
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
        f"configuration. System property 'java.security.auth.login.config' is {path}: {missing} is not set"
    )


def _key(listener: str, mechanism: str, name: str) -> str:
    return f"listener.name.{listener.lower()}.{mechanism.lower()}.{name}"


def _check_served(name: str, mechanism: str) -> None:
    if mechanism not in MECHANISMS:
        raise ConfigError(f"{name} has {mechanism}, which is not supported yet: use {', '.join(MECHANISMS)}")


def check_inter_broker(state: SaslSettings) -> None:
    """Raise ConfigError if two keys set the inter-broker listener, or if its mechanism is not enabled."""
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
    """Return the JAAS keys that are ignored because they have no mechanism prefix."""
    keys = (JAAS, *(f"listener.name.{listener.lower()}.{JAAS}" for listener in listeners))
    return [key for key in keys if key in state.settings]
