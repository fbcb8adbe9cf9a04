"""Classic cross-encoders, and the comparison of ranking losses on them."""
