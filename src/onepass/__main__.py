"""`python -m onepass` is the command."""

import sys

from onepass.cli import main

sys.exit(main())
