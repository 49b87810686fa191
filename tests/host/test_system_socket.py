"""Sockets that libraries for tests do not replace."""

from __future__ import annotations

import socket

import pytest
import pytest_socket

from kwire.host.system_socket import Socket, accept, connect


def test_connection_while_sockets_are_blocked() -> None:
    pytest_socket.disable_socket()
    try:
        listener = Socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        host, port = listener.getsockname()
        client = connect(host, port, 10)
        server, address = accept(listener)
        assert address == client.getsockname()
        assert (server.family, server.type) == (socket.AF_INET, socket.SOCK_STREAM)
        server.send(b"hello")
        assert client.recv(10) == b"hello"
        assert client.gettimeout() == 10
        for one in (listener, client, server):
            one.close()
    finally:
        pytest_socket.enable_socket()


def test_connect_raises_the_error_of_the_last_address() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            connect("localhost", port, 10)
    with pytest.raises(OSError):
        connect("host.invalid", 9092, 10)
