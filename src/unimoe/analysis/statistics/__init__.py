"""The statistics of a comparison: one model of variance for intervals, confidence, p-values and plans.

``variance`` holds the model, ``estimates`` makes estimates with intervals of it, ``power`` plans with it.
``resampling`` holds the bootstrap and the sign-flip test, which check narrower questions than the model.
"""
