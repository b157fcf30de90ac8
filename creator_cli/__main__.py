"""`python -m creator_cli` is `intarsia`."""

from creator_cli.main import main

main()
