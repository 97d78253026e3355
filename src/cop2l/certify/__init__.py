"""Everything a certificate depends on, small enough to audit."""
