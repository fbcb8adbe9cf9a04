"""Captions and images, as vectors."""
