"""`python -m penstock.cli`: the command line if no script is installed. Only calls `main`."""

import sys

from penstock.cli.main import main

sys.exit(main())
