"""Readers of runs, judgments and tables: files are told by their content, columns by their names."""
