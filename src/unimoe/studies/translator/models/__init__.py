"""Cross-modal translators: from the embedding of a caption to that of its image.

The closed forms are numpy in float64 and need no torch: ``ridge``, ``cca`` and ``geometry``, all from the sums that
``statistics`` gathers in one pass over the captions. ``interface`` says what every translator can do, ``ranking`` how
good it is, ``files`` how it is kept.
"""
