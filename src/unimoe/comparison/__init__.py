"""Methods that train a head, compared fairly: the same pools and steps, settings chosen on dev, seeds, one test.

arms      what is compared, and which settings of each are tried
methods   settings tried on dev, the best trained with every seed, results written
gate      the decision that is registered before there are scores
table     what came out
overlap   the same by whether training knew the documents that a test query looks for
search    a grid over the knobs of evolution, with a heat map
pareto    nDCG against the diversity of the first documents
flatness  how much a head loses when its weights are disturbed
"""
