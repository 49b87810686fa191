"""Who it is that asks: mechanisms of SASL, users, delegation tokens. Knows nothing of the network."""
