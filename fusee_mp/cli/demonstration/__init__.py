"""What `fusee-mp demo` shows: a shop on a server that is killed piece by piece, and the proof that nothing was lost."""
