"""`python -m smoe`, for launchers that start modules (torchrun, accelerate launch)."""

import sys

from smoe.cli import main

sys.exit(main())
