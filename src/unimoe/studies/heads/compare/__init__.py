"""The comparison of ways to train a head."""
