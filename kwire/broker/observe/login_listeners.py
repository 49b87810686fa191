"""The listeners of a node that the HTTP port makes available to its clients.

A listener that is bound to loopback counts only if the HTTP port is, too. Otherwise the HTTP port would give
other machines access to a listener that is only for this machine, and let them guess its passwords.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from kwire.broker.net.listeners import Listener
from kwire.broker.observe.ports import RunningNode
from kwire.broker.security.settings import password_listeners

if TYPE_CHECKING:
    from kwire.broker.config.sasl import ListenerSasl


def available_listeners(running: RunningNode, *, only_local: bool) -> list[Listener]:
    """Return the bound listeners that clients of the HTTP port may use.

    With `only_local`, only programs on this machine reach the HTTP port.
    """
    return [one for one in running.server.listeners if only_local or not _may_be_loopback(one.host)]


def login_listeners(
    running: RunningNode, *, only_local: bool, counts_names: bool = False
) -> list[tuple[str, ListenerSasl]]:
    """Return the listeners with users and passwords that clients of the HTTP port may use.

    A starting broker has not opened its listeners yet, so their configured hosts decide. A host name may be
    one of loopback. It counts only with `counts_names`, or once the listener is bound.
    """
    config = running.node.config
    endpoints = config.running_listeners() if config.is_broker else config.controller_endpoints()
    hosts = {one.name: one.host for one in endpoints} | {
        one.name: one.host for one in running.server.listeners
    }
    return [
        (name, sasl)
        for name, sasl in password_listeners(config)
        if only_local or not _may_be_loopback(hosts[name], is_name_loopback=not counts_names)
    ]


def _may_be_loopback(host: str, *, is_name_loopback: bool = True) -> bool:
    """Return whether a host is loopback, or a name that may be; an empty host means all addresses."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost" or (bool(host) and is_name_loopback)
