"""Readers of what people have: runs, judgments and tables, files and Python objects, by content and column names."""
