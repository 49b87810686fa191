"""A small disk that a test can fill or make fail: a mounted ext4 image.

A failed disk returns EIO to every call, like a disk that was unplugged, until it is repaired.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

SIZE_BYTES: Final = 96 << 20
SHUTDOWN: Final = 0x8004587D
"""The ioctl EXT4_IOC_SHUTDOWN, `_IOR('X', 125, __u32)`."""
WITHOUT_JOURNAL: Final = 2


class DiskUnavailable(Exception):
    """This machine cannot create disks. The message contains the reason."""


class Disk:
    def __init__(self) -> None:
        """Create and mount the disk. Raises DiskUnavailable if a command fails."""
        self._home = Path(tempfile.mkdtemp(prefix="interop-disk-"))
        self._image = self._home / "image"
        self._filler = self._home / "disk" / "filler"
        self.directory = self._home / "disk" / "data"
        """The directory for a node's data. It is not the root of the disk, which contains other files."""
        (self._home / "disk").mkdir()
        with self._image.open("wb") as image:
            image.truncate(SIZE_BYTES)
        try:
            run("mkfs.ext4", "-q", "-m", "0", str(self._image))
            self._mount()
        except RuntimeError as error:
            shutil.rmtree(self._home)
            raise DiskUnavailable(str(error)) from error

    def sync(self) -> None:
        """Sync the file system. Tools that format a node's directory do not sync their files."""
        run("sync", "--file-system", str(self._home / "disk"))

    def fill(self) -> None:
        """Fill all free space. Call again to fill space that was freed since the last call."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free_space(self) -> None:
        self._filler.unlink()

    def fail(self) -> None:
        """Make every later read and write fail with EIO."""
        opened = os.open(self._home / "disk", os.O_RDONLY)
        try:
            fcntl.ioctl(opened, SHUTDOWN, struct.pack("=I", WITHOUT_JOURNAL))
        finally:
            os.close(opened)

    def repair(self) -> None:
        """Remount the failed disk. It then contains everything that was synced before the failure.

        All files on the disk must be closed before the call.
        """
        self._unmount()
        self._mount()

    def discard(self) -> None:
        self._unmount("--lazy")
        shutil.rmtree(self._home)

    def _mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self._home / "disk"))

    def _unmount(self, *options: str) -> None:
        run("umount", *options, str(self._home / "disk"))


def run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"there is no program {command[0]}")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"'{' '.join(command)}' says: {done.stderr.strip()}")
