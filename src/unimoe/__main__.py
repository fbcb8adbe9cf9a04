"""``python -m unimoe``: the same as the ``unimoe`` command."""

from unimoe.cli.main import main

main()
