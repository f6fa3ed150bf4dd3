"""``python -m checks.trainers.maxtext PLAN.json``"""

import sys

from .session import run

run(sys.argv[1])
