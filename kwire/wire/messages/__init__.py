"""One file an API: request and response declared together."""
