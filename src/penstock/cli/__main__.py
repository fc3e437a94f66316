"""`python -m penstock.cli`: the command line where no script was installed. Does nothing but call `main`."""

import sys

from penstock.cli.main import main

sys.exit(main())
