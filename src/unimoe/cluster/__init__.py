"""Where the parts of a work are computed: in this process, by those of ``torchrun``, or on a Ray cluster."""
