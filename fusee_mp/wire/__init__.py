"""What goes over a connection, as bytes in and bytes out: preface, frames, messages. No sockets here."""
