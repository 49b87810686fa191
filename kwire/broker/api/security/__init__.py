"""SASL authentication of connections, and handlers for SCRAM credentials and delegation tokens."""
