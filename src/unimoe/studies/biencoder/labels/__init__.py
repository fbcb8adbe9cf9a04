"""Training data without judgments: a reranker grades candidates of sampled queries."""
