"""One machine without containers: all services as child processes of one supervisor.

`services` describes a service, `stack` is the table of all of them, `supervisor` keeps them alive, `process` starts
and ends one child, `state` tells other commands where the running stack is.
"""
