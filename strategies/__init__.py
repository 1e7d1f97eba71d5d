"""Server halves of the methods: one loop (``base``), then one file a method."""
