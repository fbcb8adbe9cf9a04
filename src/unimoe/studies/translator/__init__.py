"""Translators from the embedding of a caption to that of its image."""
