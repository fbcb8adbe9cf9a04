"""Ranking losses by name, over scores that are already there."""
