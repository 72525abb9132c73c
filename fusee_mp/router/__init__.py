"""The router: the parent of the server's processes. It has the listeners, knows who leases what, and keeps the others alive."""
