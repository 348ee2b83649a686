"""The methods: one file each, known by the registry."""
