"""Collections: what a collection is, and every place one can come from."""
