"""``python -m simulations.compare --cell RUN-CONFIG``: one cell, its run-config as JSON."""

import json
import signal
import sys

from fedapps.errors import RunFailed, UserError
from simulations.in_process import run

signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the run says how it ended
try:
    run(json.loads(sys.argv[sys.argv.index("--cell") + 1]))
except (UserError, RunFailed) as error:
    sys.exit(str(error))
