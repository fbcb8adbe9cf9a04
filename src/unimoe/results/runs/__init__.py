"""Run files from anywhere, found, scored by qrels and made results.

``selection`` finds and names runs and qrels, ``scoring`` scores runs and refuses what cannot be compared, ``building``
makes results of them, and ``one_file`` scores one run by itself.
"""
