"""Models: the causal language model as reranker and encoder, and text encoders."""
