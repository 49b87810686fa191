"""SASL mechanisms, SCRAM credentials, delegation tokens and principals. No code here uses the network."""
