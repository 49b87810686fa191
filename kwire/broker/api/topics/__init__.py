"""Topics: made, grown, deleted and described."""
