"""The system calls of the module `os`, safe from libraries that replace them in tests.

`os` here has the functions and constants that `os` has in C. It has no `os.path`, and no function that is
written in Python, such as `os.makedirs`. See `kwire.host.second_instance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
else:
    from types import SimpleNamespace

    from kwire.host.second_instance import second_instance

    # Not a module, because pyfakefs replaces attributes that are modules with this name.
    os = SimpleNamespace(**vars(second_instance("posix")))

__all__ = ["exists", "is_directory", "make_directories", "os", "remove_tree"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPE, _TYPE_DIRECTORY = 0o170000, 0o040000


def exists(path: str) -> bool:
    """Return whether a file or directory exists, as `os.path.exists` does."""
    try:
        os.stat(path)
    except (OSError, ValueError):
        return False
    return True


def is_directory(path: str) -> bool:
    """Return whether a directory exists, as `os.path.isdir` does."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return mode & _TYPE == _TYPE_DIRECTORY


def make_directories(path: str) -> None:
    """Create a directory and its missing parents, unless it exists. Raises OSError."""
    parent = path.rstrip("/").rpartition("/")[0]
    if parent and not exists(parent):
        make_directories(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not is_directory(path):
            raise


def remove_tree(path: str, directory: int | None = None) -> None:
    """Remove a directory and its content. It must not be a symbolic link. Raises OSError.

    `directory` is the descriptor of the directory that a relative path starts from.
    """
    descriptor = os.open(path, _DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(descriptor) as found:
            entries = list(found)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.name, descriptor)
            else:
                os.unlink(entry.name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(path, dir_fd=directory)
