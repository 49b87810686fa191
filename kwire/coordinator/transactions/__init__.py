"""The transaction coordinator: producer ids and epochs of transactional ids, and the end of transactions."""
