"""The transaction coordinator: who may write as a transactional id, and how its transactions end."""
