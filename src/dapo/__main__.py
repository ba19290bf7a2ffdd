"""python -m dapo."""

from dapo.cli import main

main()
