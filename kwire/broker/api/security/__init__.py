"""Who asks: how connections are authenticated, and the APIs of users and delegation tokens."""
