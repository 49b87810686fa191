"""The active controller: commands change the cluster metadata, and partition leaders are elected."""
