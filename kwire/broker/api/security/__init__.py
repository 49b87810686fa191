"""Users' SCRAM credentials, delegation tokens, and how clients show that they have them."""
