"""SASL mechanisms, SCRAM credentials, delegation tokens and principals. This package does no network I/O."""
