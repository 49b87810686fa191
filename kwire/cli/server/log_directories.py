"""The error for log directories that a node cannot use."""

from __future__ import annotations

from kwire.broker.config import BrokerConfig
from kwire.broker.storage.dirs.log_dir import DirectoryInUse, unusable_text
from kwire.broker.storage.disk import StorageError
from kwire.cli.shared.command_error import CommandError


def unusable(config: BrokerConfig, error: StorageError) -> CommandError:
    """Return an error that says why the log directories cannot be used, and what to do."""
    if isinstance(error, DirectoryInUse):
        return CommandError(str(error))  # its message already has advice
    if len(config.log_dirs) == 1:
        return CommandError(unusable_text({config.log_dirs[0]: error}))
    return CommandError(f"a log directory cannot be used: {error}: choose another one in log.dirs")
