"""The authorizer of a node, which follows the ACLs in the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.audit_log import AuditLog
from kwire.broker.security.acl import Acls, acl_changes
from kwire.broker.security.standard_authorizer import StandardAuthorizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kwire.broker.api.request.gate import Gate
    from kwire.broker.config.authorizer import AuthorizerSettings
    from kwire.broker.metadata.delta import MetadataDelta
    from kwire.broker.metadata.image import MetadataImage
    from kwire.host.host import Host


class AclPublisher:
    """Gives the gate an authorizer with the ACLs of each metadata image.

    Until the node has read the committed metadata, the authorizer allows only super users (Apache Kafka's
    `completeInitialLoad`).
    """

    def __init__(
        self, settings: AuthorizerSettings, gate: Gate, host: Host, high_watermark: Callable[[], int]
    ) -> None:
        """`high_watermark` returns the known end of the committed metadata; -1 if none is known."""
        self._gate = gate
        self._high_watermark = high_watermark
        self._acls: Acls = {}
        self._is_loaded = False
        self._logger = host.logger("kwire.security")
        self._authorizer = gate.authorizer = StandardAuthorizer(
            settings.super_users, allows_without_acls=settings.allows_without_acls, is_loaded=False
        )
        gate.audit_log = AuditLog(host)

    def update(self, image: MetadataImage, _delta: MetadataDelta) -> None:
        """Apply the ACLs of a new image."""
        before, acls = self._acls, image.acls
        is_loaded = self._is_loaded or 0 <= self._high_watermark() <= image.offset + 1
        if acls is before and is_loaded == self._is_loaded:
            return
        removed, added = acl_changes(before, acls)
        if is_loaded and not self._is_loaded:
            self._logger.info("The authorizer has loaded %d ACLs", len(acls))
        self._acls, self._is_loaded = acls, is_loaded
        self._authorizer = self._gate.authorizer = self._authorizer.changed(
            removed, added, is_loaded=is_loaded
        )
