"""The losses by name. Every file here registers some; none imports torch before a loss is computed."""
