"""Models: what `model.path` may be, loading, EOS ids, body and head."""
