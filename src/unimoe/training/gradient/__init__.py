"""Training with gradients: rank_only, emb_only and joint arms."""
