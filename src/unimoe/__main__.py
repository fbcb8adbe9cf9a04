"""``python -m unimoe``: the same as the ``unimoe`` command."""

from unimoe.cli import main

main()
