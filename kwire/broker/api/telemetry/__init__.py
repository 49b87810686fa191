"""What clients push of their own metrics: who is asked for which, and what they have pushed. KIP-714."""
