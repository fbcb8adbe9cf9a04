"""EGGROLL: evolution strategies with low-rank perturbations of a linear head, in closed form.

noise           directions drawn by counter: any of them alone, the same ones for the same seed and step
perturbations   what a set of directions is: independent ones, or a grid of factors
scoring         the scores of a pool under every perturbation, without a perturbed weight
ndcg            nDCG or MRR of every perturbation, as the evaluator counts them
shaping         fitness to weights of directions
update          the estimate of the gradient, the step along it, the scale of the noise
score_space     the second estimator: perturb the scores, backpropagate exactly through the head

These know neither files nor configurations nor collections. On top of them, what ``training/heads`` trains with:

method          evolution in the space of weights, and of scores
objectives      relevance, diversity, fairness and freshness as one fitness, and the Pareto front
genetic         a population of heads: tournament, crossover, mutation, elites
hybrid          evolution, then gradients
fp4             weights in NVFP4 between steps
soft_labels     half-relevant labels by the votes of several rankers

Source: Sarkar et al. 2025, "Evolution Strategies at the Hyperscale", arXiv 2511.16652.
"""
