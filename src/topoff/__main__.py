"""Run the command line: `python -m topoff`."""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]  # `python -m` looks there first: a numpy.py in a foreign folder would be run instead of numpy

from topoff.cli.app import main

main()
