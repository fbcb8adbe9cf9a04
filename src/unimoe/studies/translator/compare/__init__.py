"""The comparison and the ablation of translators."""
