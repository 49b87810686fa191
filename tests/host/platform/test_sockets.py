"""Options of sockets that differ between Linux and macOS."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import _socket, signal
from kwire.host.platform.sockets import MSG_NOSIGNAL, prevent_sigpipe
from kwire.host import system_socket
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
ours = system_socket.Socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, ours.detach())
prevent_sigpipe(ours)
theirs.close()
try:
    ours.send(b"x", MSG_NOSIGNAL)
except BrokenPipeError:
    print("error")
"""


def test_send_to_a_closed_peer_is_an_error_and_no_signal() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "error\n"), ran.stderr
