"""Evaluation of systems on standard collections and tasks, and the results that it stores."""
