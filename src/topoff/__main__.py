"""Run the command line: `python -m topoff`."""

from topoff.cli import main

main()
