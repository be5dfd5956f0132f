"""A simulated engine and a simulated trainer, for experiments on load, faults and scheduling. Nothing here learns.

Both stand where the real ones stand and speak the same protocols, so every other service is real. They are started by
`bench` and by fault experiments alone; no setting of a deployment leads here.
"""
