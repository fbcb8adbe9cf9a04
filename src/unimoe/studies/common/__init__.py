"""What several studies share: splits by query, results on pools, registered gates."""
