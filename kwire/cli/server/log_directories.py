"""The error for log directories that a node cannot use."""

from __future__ import annotations

from kwire.broker.config import BrokerConfig
from kwire.broker.storage.dirs.log_dir import DirectoryInUse
from kwire.broker.storage.disk import StorageError
from kwire.cli.shared.command_error import CommandError


def unusable(config: BrokerConfig, error: StorageError) -> CommandError:
    """Return an error that says why the log directories cannot be used, and what to do."""
    # The message of DirectoryInUse already has advice.
    advice = "" if isinstance(error, DirectoryInUse) else ": choose another one with --data or in log.dirs"
    return CommandError(f"log.dirs is {','.join(config.log_dirs)}, which cannot be used: {error}{advice}")
