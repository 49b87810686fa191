"""The cases of the matrix, by the kind of API."""
