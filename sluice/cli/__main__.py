"""`python -m sluice.cli`: the same as `sluice`, wherever scripts are not on PATH."""

import sys

from sluice.cli import main

sys.exit(main())
