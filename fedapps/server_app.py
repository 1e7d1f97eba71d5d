"""The ServerApp: run-config -> scenario -> strategy -> start."""

from __future__ import annotations

from logging import ERROR, INFO

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

# A simulation loads the ClientApp in another thread of this process, and takes it half imported if it finds it so: it
# is whole before ``main`` begins.
from fedapps import checks, client_app  # noqa: F401
from fedapps.errors import RunFailed, UserError
from fedapps.holdings import Holdings
from fedapps.results.folder import RunFolder
from fedapps.results.plots import plot_runs
from fedapps.results.summary import summarise
from fedapps.settings import read

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Check everything, open the run folder, run, summarise. Whatever fails from then on is in ``run.json``."""
    try:
        settings, scenario = read(context.run_config)
        holdings = Holdings(scenario, settings.seed, settings.data_path)
        entry = checks.check(settings, scenario, holdings, private=False)
        run = RunFolder(settings, scenario)
    except UserError as error:
        log(ERROR, "run failed: %s", error)
        raise
    log(INFO, "run folder: %s", run.path)
    try:
        strategy = entry.load_strategy()(settings, scenario, holdings, run)
        strategy.summary()
        strategy.start(grid)
        _report(run)
    except BaseException as error:
        told = isinstance(error, UserError | RunFailed)
        reason = str(error) if told else f"{type(error).__name__}: {error}"
        if isinstance(error, KeyboardInterrupt):
            reason = "stopped"
        log(ERROR, "run failed: %s", reason)
        try:
            run.end(reason)
            if any("metrics" in row for row in run.rows()):
                _report(run)
        except (OSError, UserError) as full:  # the reason may be just that; what is to be seen is the first
            log(ERROR, "run.json and summary.json cannot be written: %s", full)
        raise
    run.end()
    log(INFO, "run folder: %s", run.path)


def _report(run: RunFolder) -> None:
    """``summary.json`` and plots of what the run has recorded."""
    summarise(run.path)
    plot_runs([run.path])
