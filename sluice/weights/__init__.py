"""Policy versions as files: a manifest that names every tensor with its checksum, and safetensors shards.

`publish` writes a version, `fetch` verifies (and downloads) one, `server` streams them. None of it needs torch.
"""
