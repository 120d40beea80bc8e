"""The measurements of `specedge bench`, its report and its recommendation."""
