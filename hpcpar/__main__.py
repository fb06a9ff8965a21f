"""``python -m hpcpar`` is the `hpcpar` command."""

import sys

from hpcpar.cli import main

if __name__ == "__main__":
    sys.exit(main())
