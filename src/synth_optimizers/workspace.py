"""Workspaces: their status, their projections and their size."""

from synth_optimizers._synth_optimizers import workspace_rebuild, workspace_status, workspace_vacuum

__all__ = ["workspace_rebuild", "workspace_status", "workspace_vacuum"]
