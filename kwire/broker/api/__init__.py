"""From requests to replies: a plain function an API, one file a subject."""
