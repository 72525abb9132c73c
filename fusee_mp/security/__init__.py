"""Who may connect: TLS, tokens and their scopes, and the door that every accepted connection comes through."""
