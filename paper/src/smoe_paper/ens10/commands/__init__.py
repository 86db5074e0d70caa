"""Commands of `smoe data` for this experiment."""
