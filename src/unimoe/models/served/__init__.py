"""Models behind a server: one client, and one file for each API under ``apis``."""
