"""Rerankers that are no yes/no prompt to a causal language model: one family a file."""
