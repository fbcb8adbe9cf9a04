"""The bi-encoder from end to end: labels, training, and what it finds before and after."""
