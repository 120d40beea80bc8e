"""What reproduces a paper and is the quickest on no published model; it registers by name (`runtime/registered.py`)."""
