"""Tables, plots and the page, from run directories alone."""
