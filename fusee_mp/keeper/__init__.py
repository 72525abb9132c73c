"""The process that folds one shard's durable log into its store and answers reads; `owner` has the owner's side."""
