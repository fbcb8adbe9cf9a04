"""What systems are evaluated on: the collections of a tier with their first-stage candidates."""
