"""`python -m onepass` is the command."""

import sys

from onepass.cli.main import main

sys.exit(main())
