"""Classic cross-encoders trained on lists of documents, through sentence-transformers' trainer."""
