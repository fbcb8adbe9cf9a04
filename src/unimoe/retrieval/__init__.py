"""First-stage retrieval: the candidates that models rerank."""
