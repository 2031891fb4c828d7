"""The folds behind progress.json, run_info.json, execution plans and task counts."""
