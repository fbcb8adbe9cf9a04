"""Training of a translator from caption vectors to image vectors.

contrastive   InfoNCE over a bank of images, with its gradient in the same pass
objectives    all terms of the loss, and how often each had something to do
queues        images and predictions of past batches
sampler       batches: shuffled, or so many captions of so many images
schedule      temperature, queue and learning rates by epoch
closed_forms  ridge, geometry and canonical correlations by name
epochs        the epochs of a training
trainer       a training from outside: found or done, the best epoch kept
checkpoints   what it leaves, and how good that is
flickr8k      its captions, embedded, with their images
state         a training under way, on disk
"""
