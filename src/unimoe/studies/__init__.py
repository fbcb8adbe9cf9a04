"""Side questions, each whole in a folder of its own; the main line imports none of them."""
