"""The paper: what it prints, what it claims, and the runs that its tables and figures need."""
