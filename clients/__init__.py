"""Client halves of the methods: one ``ClientApp`` a file."""
