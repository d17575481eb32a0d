"""Still pictures with matplotlib."""
