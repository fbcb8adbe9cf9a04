"""Ranking losses by name, over scores that were computed already: for arms, heads, cross-encoders and bi-encoders.

A loss of your own is a function of scores, labels and options::

    from unimoe.training.losses import Loss, register_loss

    register_loss("hinge", Loss(lambda scores, labels, options: ...))

Inside unimoe it is a function in a file of this folder with a line in ``named.py``. Every config that names a loss can
name it then.
"""

from unimoe.config.training import LOSSES, Loss

__all__ = ["LOSSES", "Loss", "register_loss"]

register_loss = LOSSES.add
