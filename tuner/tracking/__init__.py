"""MLflow: where people look at trials. The only importer of mlflow, and a late one (it costs over a second)."""

from tuner.tracking.earlier import read_earlier
from tuner.tracking.tracker import MlflowTracker, default_uri
from tuner.tracking.ui import open_ui, ui_command

__all__ = ["MlflowTracker", "default_uri", "open_ui", "read_earlier", "ui_command"]
