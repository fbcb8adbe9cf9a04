"""The candidate generator: a bi-encoder trained by contrast, which finds what a reranker then orders."""
