"""`python -m tokencredit`."""

from __future__ import annotations

import sys

from tokencredit.cli import main

sys.exit(main())
