"""The child process that runs brokers for the tests of this process, and the calls into it.

A test may freeze time, fake the file system, replace `open` or sockets, or run under gevent. All of this
affects a broker in a thread of this process, but not a broker in a child process. The calls into the child
process still run beside these doubles. Therefore:

- The child process is a new interpreter, started by `posix_spawn`. A fork would inherit the doubles.
- This module uses system calls that doubles do not find (`kwire.host.system_os`), and the C modules `_socket`
  and `_thread`. It does not use `subprocess`, `select` or `socket`.
- A call writes to a socket and reads the result in the calling thread. Under gevent, a second thread would
  be a green thread, and would wait for the first one.
- Under gevent or eventlet, a waiting call sleeps with their function, so that other green threads run.

The process has a control socket to its child. To open a connection, it sends one end of a new pair of sockets
through the control socket. Calls of several threads, and calls in forked processes, each use a connection of
their own. The child process ends when the control socket is closed or the parent process has ended.

The standard output and error of the child process, and its warnings, go to an anonymous file. If the child
process dies, the error of the next call has the last lines of this file.
"""

from __future__ import annotations

import _socket
import _thread
import array
import atexit
import logging
import pickle
import sys
from collections import deque
from contextlib import suppress
from functools import partial
from os import environ
from typing import Any

from kwire.host.loggers import ROOT, known_loggers
from kwire.host.platform.files import anonymous_file
from kwire.host.platform.processes import OPEN_FILES
from kwire.host.platform.sockets import MSG_NOSIGNAL, prevent_sigpipe
from kwire.host.system_os import os
from kwire.host.system_time import sleep
from kwire.testing.child_frames import Call, Result, drain, encode_call, join_error, receive
from kwire.testing.green_threads import green_sleep
from kwire.testing.temporary_directory import new_directory
from kwire.testing.thread_call import check_cancelled, in_call

CHILD_ITSELF = 0
"""The handle of the child process in calls."""
PROGRAM = f"""\
import os, select, sys
control = select.poll()
control.register(0)
if any(event & select.POLLHUP for _, event in control.poll(0)):
    sys.exit()
for fd in map(int, os.listdir("{OPEN_FILES}")):
    try:
        fd > 2 and os.close(fd)
    except OSError:
        pass
sys.path.insert(0, sys.argv[1])
import kwire
del sys.path[0]
from kwire.testing.child_server import main
main(int(sys.argv[2]), sys.argv[3:])
"""
"""The program of the child process. It uses the same package `kwire` as this process.

It ends at once if its start was interrupted, because the test process does not use it then. It closes
inherited descriptors: libraries of the test may have left their sockets inheritable.
"""
GREEN_SLEEP_SECONDS = 0.001
POLL_SECONDS = 0.001
CANCEL_SECONDS = 0.05
"""The interval at which a call checks that it was not cancelled."""
RECEIPT_SECONDS = 0.05
"""The time after which a process that waits for the child process checks that it is alive."""
SHOWN_LINES = 10
SHOWN_BYTES = 4000
END_TIMEOUT_SECONDS = 10


class ChildDied(RuntimeError):
    """The child process has ended, with all brokers in it."""


class ChildProcess:
    """A child process. Calls can be made from any thread, and from forked processes."""

    def __init__(self) -> None:
        """Start the process, without waiting for it. The first call waits until it is ready."""
        self._log_fd = -1
        self._close_descriptor = os.close  # __del__ may run when the variables of this module are gone
        self._idle: dict[int, list[_socket.socket]] = {}
        """Idle connections by process: forked processes must not share connections."""
        if not sys.executable:
            raise RuntimeError("sys.executable is empty: a child process needs the path of the interpreter")
        self._control, theirs = map(
            _socket_above_standard_error, _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        )
        self._log_fd = _above_standard_error(anonymous_file("kwire child process", new_directory))
        prevent_sigpipe(self._control)
        self._owner = os.getpid()
        root = __file__.rsplit("/", 3)[0]
        argv = [sys.executable, "-P", "-c", PROGRAM, root, str(self._owner), *filter(None, sys.path)]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                argv,
                dict(environ),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, self._log_fd, 1),
                    (os.POSIX_SPAWN_DUP2, self._log_fd, 2),
                ],
                setpgroup=0,  # Ctrl-C in a terminal is for the test, which then stops its brokers
                setsigmask=(),
            )
        finally:
            theirs.close()
        self._death = ""
        """The error of all further calls. Empty while the process is alive."""
        self._lock = _thread.allocate_lock()
        self.released: deque[int] = deque()
        """Handles to release with the next call."""
        atexit.register(self.end)
        self._start_log_thread()

    def renew_lock(self) -> None:
        """Replace the lock in a forked process: a thread that does not exist there may have held it."""
        self._lock = _thread.allocate_lock()

    def __del__(self) -> None:
        self._close()  # not before, because other threads may be using the descriptors

    @property
    def is_alive(self) -> bool:
        """Whether no call has found the process dead."""
        return not self._death

    def call(self, handle: int, method: str, *args: Any) -> Any:
        """Call a method of an object in the child process, and return its result or raise its error.

        Raises ChildDied if the process has ended.
        """
        __tracebackhide__ = True
        if self._death:
            raise ChildDied(self._death)
        is_owner = os.getpid() == self._owner
        released = drain(self.released) if is_owner else []
        frame = encode_call(Call(handle, method, args, _wanted_log_level() if is_owner else None, released))
        connection = None
        try:
            connection = self._connect()
            connection.sendall(frame, MSG_NOSIGNAL)
            result = Result(*pickle.loads(receive(_reader(connection))))
        except BaseException as error:
            if connection is not None:  # after an interrupt, its result must not become that of another call
                connection.close()
            if isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
                self._record_death()
                raise ChildDied(self._death) from None
            raise
        self._idle[os.getpid()].append(connection)
        _log(result.log_records)
        if result.error is not None:
            raise join_error(result.error)
        return result.value

    def end(self) -> None:
        """End the process, and wait until its temporary directories are removed. Forks do nothing."""
        if os.getpid() != self._owner or self._death:
            return
        self._death = "the child process of kwire.testing has ended"
        atexit.unregister(self.end)
        self._control.shutdown(_socket.SHUT_WR)
        self._control.settimeout(END_TIMEOUT_SECONDS)
        try:
            self._control.recv(1)  # returns when the child process has closed its end
            os.waitpid(self.pid, 0)
        except OSError:  # it has not ended in time, or was reaped by someone else
            pass

    def _connect(self) -> _socket.socket:
        pid = os.getpid()
        idle = self._idle.get(pid)
        if idle is None:
            for inherited in self._idle.values():
                while inherited:
                    inherited.pop().close()
            idle = self._idle.setdefault(pid, [])
        if idle:
            try:
                return idle.pop()
            except IndexError:  # another thread was faster
                pass
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        prevent_sigpipe(ours)
        descriptor = array.array("i", [theirs.fileno()])
        try:
            self._control.sendmsg(
                [b"c"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor)], MSG_NOSIGNAL
            )
            self._await_receipt(ours)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _await_receipt(self, connection: _socket.socket) -> None:
        """Wait until the child process has received the other end. Raises EOFError if the process has ended.

        macOS may lose a descriptor that is closed before the other process has received it.
        """
        sleep = green_sleep()
        connection.settimeout(RECEIPT_SECONDS if sleep is None else 0)
        while True:
            try:
                connection.recv(1)
                break
            except TimeoutError:
                pass
            except BlockingIOError:
                assert sleep is not None
                sleep(GREEN_SLEEP_SECONDS)
            with suppress(BlockingIOError):
                if not self._control.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT):
                    raise EOFError
        connection.settimeout(None)

    def _record_death(self) -> None:
        with self._lock:
            if self._death:
                return
            how = self._ending()
            lines = self._last_lines()
            logged = "; its last log lines:\n  " + "\n  ".join(lines) if lines else ""
            self._death = f"the child process {self.pid} of kwire.testing {how}{logged}"
            atexit.unregister(self.end)

    def _ending(self) -> str:
        """Describe the end of the process, which closes its sockets a moment before it can be reaped."""
        for _ in range(int(END_TIMEOUT_SECONDS / POLL_SECONDS)):
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another part of the test has reaped it, or this is a fork
                return "has ended"
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return f"ended with exit status {code}" if code >= 0 else f"was ended by signal {-code}"
            sleep(POLL_SECONDS)
        return "has closed the connection"

    def _last_lines(self) -> list[str]:
        size = os.fstat(self._log_fd).st_size
        data = os.pread(self._log_fd, SHOWN_BYTES, max(0, size - SHOWN_BYTES))
        return data.decode(errors="replace").splitlines()[-SHOWN_LINES:]

    def _close(self) -> None:
        log_fd, self._log_fd = self._log_fd, -1
        if log_fd >= 0:
            self._close_descriptor(log_fd)
            self._control.close()
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    # --- the log

    def _start_log_thread(self) -> None:
        if green_sleep() is None:
            _thread.start_new_thread(self._forward_log, ())

    def _forward_log(self) -> None:
        """Log what the child process logs between calls, in a thread of this process."""
        while green_sleep() is None:
            try:
                self.call(CHILD_ITSELF, "wait_for_log")
            except ChildDied:
                return


class ChildProcesses:
    """The child process of this process. A dead one is replaced."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._current: ChildProcess | None = None
        os.register_at_fork(after_in_child=self._renew_locks)

    def get(self) -> ChildProcess:
        """Return the running child process, and start it if there is none."""
        with self._lock:
            if self._current is None or not self._current.is_alive:
                self._current = ChildProcess()
            return self._current

    def _renew_locks(self) -> None:
        self._lock = _thread.allocate_lock()
        if self._current is not None:
            self._current.renew_lock()


CHILD_PROCESSES = ChildProcesses()
"""One child process for all brokers of this process, because its start takes as long as a hundred brokers."""


def _above_standard_error(descriptor: int) -> int:
    """Return a descriptor above 2 instead of a lower one, which is closed.

    A process that was started with a closed standard input gets the lowest numbers for its new descriptors.
    `posix_spawn` would replace these numbers before it uses them.
    """
    if descriptor > 2:
        return descriptor
    try:
        return _above_standard_error(os.dup(descriptor))  # not F_DUPFD: pyfakefs replaces fcntl
    finally:
        os.close(descriptor)


def _socket_above_standard_error(sock: _socket.socket) -> _socket.socket:
    descriptor = _above_standard_error(sock.detach())
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, descriptor)


def _reader(connection: _socket.socket) -> Any:
    sleep = green_sleep()
    if sleep is None:
        return partial(_read_until_cancelled, connection) if in_call() else connection.recv

    def read(size: int) -> bytes:
        while True:
            try:
                return connection.recv(size, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                sleep(GREEN_SLEEP_SECONDS)

    return read


def _read_until_cancelled(connection: _socket.socket, size: int) -> bytes:
    """Receive bytes. Raises CallCancelled soon after the task that awaits the call was cancelled."""
    connection.settimeout(CANCEL_SECONDS)
    try:
        while True:
            try:
                return connection.recv(size)
            except TimeoutError:
                check_cancelled()
    finally:
        connection.settimeout(None)


def _wanted_log_level() -> int:
    return min(logger.getEffectiveLevel() for name, logger in known_loggers().items() if name != ROOT)


def _log(records: list[dict[str, Any]]) -> None:
    for state in records:
        with suppress(Exception):  # as in NodeLogger.log: a double of time.time can prevent the line
            record = logging.makeLogRecord(state)
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
