"""The comparison of translators."""
