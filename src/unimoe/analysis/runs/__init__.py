"""Systems compared from their TREC runs alone: a verdict of two arms, or a table of any number of systems.

``selection`` finds and names what is compared, ``scoring`` scores runs and refuses what cannot be compared,
``building`` makes results of them and keeps them in a folder, ``systems`` compares any number of systems.
"""
