"""Values and exceptions of user code as JSON bytes, and back."""
