"""`python -m onepass` is the command."""

import sys

from onepass.cli.main import command

sys.exit(command())
