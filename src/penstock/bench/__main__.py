"""`python -m penstock.bench URL`: the same program as `penstock bench URL`.

For environments in which the package is importable and its commands are not on the path.
"""

import sys

from penstock.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
