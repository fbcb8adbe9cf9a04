"""Say what."""
