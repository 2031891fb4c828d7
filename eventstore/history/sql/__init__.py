"""Questions asked and guarded, canned questions, and export."""
