"""One file an API: a plain function from request to reply."""
