"""One module or folder for each thing a person does to a run, named like its command."""
