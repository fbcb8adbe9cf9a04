"""What is trained and scored: the causal language model as reranker and encoder."""
