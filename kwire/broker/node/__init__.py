"""A node: the list of its parts, what they are to each other, and its life."""
