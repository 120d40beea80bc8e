"""What reproduces a paper and wins on no published model: found by name (`export.registered`), imported by no other."""
