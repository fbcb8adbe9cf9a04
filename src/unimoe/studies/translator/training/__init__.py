"""Training of a translator from caption vectors to image vectors."""
