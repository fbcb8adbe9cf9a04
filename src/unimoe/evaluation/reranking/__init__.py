"""What turns pairs of texts into scores, whole or in shards that a killed run finds again."""
