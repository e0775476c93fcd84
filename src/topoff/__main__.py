"""Run the command line: `python -m topoff`."""

from topoff.cli.app import main

main()
