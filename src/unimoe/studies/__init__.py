"""Studies next to the main line, each complete in one folder; the main line imports none of them."""
