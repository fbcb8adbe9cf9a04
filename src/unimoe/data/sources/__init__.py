"""The places a collection can come from."""
