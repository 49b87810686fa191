"""The active controller, which changes the cluster metadata and elects partition leaders."""
