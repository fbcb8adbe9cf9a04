"""Training data without judgments: queries worth labels, a deep first stage, and a reranker that grades pairs."""
