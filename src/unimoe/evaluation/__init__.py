"""Evaluates systems on standard collections and tasks, and stores what comes out."""
