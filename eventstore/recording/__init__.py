"""A run being recorded: session, live snapshots, run.log, the AgentCompass reporter."""
