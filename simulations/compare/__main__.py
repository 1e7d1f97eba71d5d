"""``python -m simulations.compare --cell RUN-CONFIG``: one cell, its run-config as JSON."""

import json
import sys

from fedapps.errors import RunFailed, UserError
from simulations.in_process import run

try:
    run(json.loads(sys.argv[sys.argv.index("--cell") + 1]))
except (UserError, RunFailed) as error:
    sys.exit(str(error))
