"""Training of a bi-encoder, which finds the candidates for a reranker."""
