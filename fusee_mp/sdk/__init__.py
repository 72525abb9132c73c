"""What users import: definitions, the engine, the client, the worker and the context of a workflow."""
