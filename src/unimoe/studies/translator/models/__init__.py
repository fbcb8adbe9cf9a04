"""Translators from the embedding of a caption to that of its image; the closed forms need no torch."""
